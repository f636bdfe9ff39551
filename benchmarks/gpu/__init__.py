"""Benchmarks of the engine on a GPU."""
