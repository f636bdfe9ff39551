"""The callers of models: their keys, what these allow, and the keys that engines get in their place."""
