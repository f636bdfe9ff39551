"""OpenAI's responses API: its request, its items, its tools, its answer and its endpoints."""
