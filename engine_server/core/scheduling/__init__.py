"""Scheduling: the requests of each step and their number of tokens."""
