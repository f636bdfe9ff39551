"""From what a caller passes to a checked, tokenized request."""
