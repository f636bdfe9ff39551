"""From hidden states to vectors and scores."""
