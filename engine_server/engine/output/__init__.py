"""Conversion of the core's tokens to text, log-probabilities and outputs."""
