"""Triton kernels for GPUs. Each has an equivalent in plain torch, which is slower."""
