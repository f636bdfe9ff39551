"""Adapters: their files, and the layers of a model that they change."""
