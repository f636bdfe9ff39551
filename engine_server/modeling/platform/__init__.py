"""Platforms: a device, the operations on it, and the kernels that can run there.

No other module asks for a device's type.
"""
