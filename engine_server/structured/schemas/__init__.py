"""What JSON schemas mean, and what of them a grammar enforces."""
