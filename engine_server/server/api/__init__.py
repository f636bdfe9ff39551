"""The APIs: a module each, with its requests, its answers and its renderer."""
