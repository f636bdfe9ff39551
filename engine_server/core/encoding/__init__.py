"""The rows of pictures, in place of the embeddings of a prompt's placeholders."""
