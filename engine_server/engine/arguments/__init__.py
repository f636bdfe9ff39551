"""From an engine's arguments to its configs: command-line flags, checks and the resolution of defaults."""
