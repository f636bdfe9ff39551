"""Checks and tokenization of a caller's input."""
