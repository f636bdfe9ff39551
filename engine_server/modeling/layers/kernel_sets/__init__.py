"""Kernel sets: the kernels that can replace modules of transformers, for each kind of device."""
