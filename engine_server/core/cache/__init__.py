"""The paged KV cache's blocks and block tables."""
