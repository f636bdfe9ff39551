"""Resolution of an engine's arguments to its configs: command-line flags, checks and defaults."""
