"""The HTTP server of an engine pod."""
