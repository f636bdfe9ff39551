"""How a model of transformers runs one flat step: the attention hook, its backends, kernels. No requests, no HTTP."""
