"""Anthropic's messages API: its request, its content blocks, its tools, its answer and its endpoints."""
