"""Memory: the KV cache's layout and size, and what a device has left."""
