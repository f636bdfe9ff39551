"""The APIs of pooling models: embeddings, scores, classification and hidden states."""
