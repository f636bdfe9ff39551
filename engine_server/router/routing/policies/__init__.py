"""Policies: which of the live replicas takes a request."""
