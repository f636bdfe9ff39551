"""The sources of models and adapters: a module each, which model_uri.py lists."""
