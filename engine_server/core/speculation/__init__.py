"""Speculative decoding: guesses of the next tokens, which the model verifies several in a step."""
