"""Streams through a router whose engines fail."""
