"""Captured steps."""
