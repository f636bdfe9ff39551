"""Heads: from logits or hidden states to tokens and vectors."""
