"""From the core's tokens to text, log-probabilities and streams."""
