"""Attention over the paged KV cache: the interface, its backends, and replacements of attention modules."""
