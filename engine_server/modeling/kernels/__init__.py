"""Triton kernels. `TRITON_INTERPRET=1`, set before triton is imported, runs them on the CPU."""
