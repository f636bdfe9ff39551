"""Means of all programs: forms, bounds and checks that state nothing about a deployment or a request's path."""
