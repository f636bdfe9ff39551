"""Readers of quantised checkpoints: one module for each form in which files store weights."""
