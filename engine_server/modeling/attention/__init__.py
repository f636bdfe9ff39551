"""Attention over the paged KV cache: the interface, its backends, and attention modules of ours."""
