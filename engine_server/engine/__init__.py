"""The engine library: continuous batching over a paged KV cache. No HTTP, no Kubernetes."""
