"""GGUF files: what they hold, and their conversion to folders that load fast."""
