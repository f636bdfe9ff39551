"""Memory: layout and size of the KV cache, and accounting of the device's and the host's memory."""
