"""Measurements of prompts with pictures."""
