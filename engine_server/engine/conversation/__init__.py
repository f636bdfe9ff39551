"""Conversations as ordered parts, and the messages that a chat template takes of them."""
