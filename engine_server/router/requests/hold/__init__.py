"""Requests that wait for a replica: their order, their bounds, and the start of a replica for them."""
