"""What an engine says about itself: statistics, their loggers, metrics and traces."""
