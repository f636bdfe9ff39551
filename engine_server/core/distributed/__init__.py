"""Child processes and the ranks that share a model."""
