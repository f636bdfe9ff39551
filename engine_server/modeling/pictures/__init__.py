"""What a model makes of a picture: placeholders in a prompt, and rows in their place."""
