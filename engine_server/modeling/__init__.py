"""Execution of a transformers model on one flat step: attention hook, backends, kernels. No requests, no HTTP."""
