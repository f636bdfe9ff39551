"""C++ kernels for CPUs. Each has an equivalent in plain torch, which is slower.

`build` compiles a library for each instruction level; `library` loads the one for this machine, if it exists.
"""
