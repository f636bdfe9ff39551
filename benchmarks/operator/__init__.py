"""The operator at scale."""
