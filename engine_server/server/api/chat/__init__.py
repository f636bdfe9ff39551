"""OpenAI's chat API: its request, its messages, its answer and its endpoint."""
