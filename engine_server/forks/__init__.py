"""Tasks that may take any time and memory, or crash: each runs in a fork of a process kept for them, within limits."""
