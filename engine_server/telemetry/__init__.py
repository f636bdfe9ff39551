"""Statistics of an engine, their loggers, metrics and traces."""
