"""Kernels in C++ for CPUs, beside which plain torch does the same more slowly.

`build` compiles them once for each level of instructions; `library` loads what fits this machine, if anything does.
"""
