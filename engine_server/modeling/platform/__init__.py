"""Platforms: a device, the operations on it, and the kernels that can run there."""
