"""A conversation's history: what each API reads it into, and the messages that a chat template takes."""
