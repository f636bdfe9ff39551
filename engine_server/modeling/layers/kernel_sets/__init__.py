"""Kernel sets: for each kind of device, the kernels that modules of transformers can be given."""
