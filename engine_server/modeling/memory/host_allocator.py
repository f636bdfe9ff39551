"""How glibc, where it is the C library, keeps the host's memory that a step takes and frees."""

import ctypes

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
KEPT = 512 << 20
LARGE = 128 << 20

libc = ctypes.CDLL(None)  # what this process has loaded


def keep_freed_memory() -> None:
    """Keep up to 512 MiB of what is freed, but for single pieces of 128 MiB or more.

    Steps take the same memory again and again. By default most of it goes back to the kernel each time, which hands it
    out anew page by page, each cleared: a seventh of a small model's prefill. It holds for the whole process.
    """
    if hasattr(libc, "mallopt"):
        libc.mallopt(TRIM_THRESHOLD, KEPT)
        libc.mallopt(MMAP_THRESHOLD, LARGE)


def return_freed_memory() -> None:
    """Give the kernel what is kept."""
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
