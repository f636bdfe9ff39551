"""Processors that change logits before a token is drawn."""
