"""Performance benchmarks, one per module."""
