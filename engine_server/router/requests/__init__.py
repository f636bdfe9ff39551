"""The path of a request: attempts at replicas, the relay of an answer, and what is counted."""
