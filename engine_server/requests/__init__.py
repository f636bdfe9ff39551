"""Requests: their parameters, prompts, adapters and outputs, and the messages between front end and core."""
