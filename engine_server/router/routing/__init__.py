"""The choice of a replica: names, liveness and policies."""
