"""Parsing of generated text: reasoning and tool calls, in the formats of the models."""
