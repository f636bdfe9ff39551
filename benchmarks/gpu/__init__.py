"""What a GPU does with this engine."""
