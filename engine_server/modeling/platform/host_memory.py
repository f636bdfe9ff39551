"""The host's memory: the free amount, and glibc's reuse of memory that steps allocate and free."""

import ctypes
from pathlib import Path

# Parameters of mallopt in glibc's malloc.h.
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
# Bytes that the allocator keeps for reuse, and the smallest single allocation that it always returns to the kernel.
KEPT = 512 << 20
LARGE = 128 << 20
# Limit and usage of this process's control group, version 2 and 1.
CGROUP_FILES = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)
# Page cache, which counts as used but which the kernel drops under pressure.
RECLAIMABLE = ("active_file", "inactive_file")

libc = ctypes.CDLL(None)


def free_host_memory() -> int:
    """Return the bytes that this process may still allocate: the machine's, or its control group's if less."""
    meminfo = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    free = int(meminfo["MemAvailable"].split()[0]) * 1024
    for limit_file, usage_file in CGROUP_FILES:
        if Path(limit_file).is_file() and (limit := Path(limit_file).read_text().strip()) != "max":
            stat = dict(
                line.split() for line in Path(usage_file).with_name("memory.stat").read_text().splitlines()
            )
            reclaimable = sum(int(stat.get(f"total_{kind}", stat.get(kind, 0))) for kind in RECLAIMABLE)
            free = min(free, int(limit) - int(Path(usage_file).read_text()) + reclaimable)
    return max(free, 0)


def keep_freed_memory() -> None:
    """Make glibc keep up to 512 MiB of freed memory in this process, except for allocations of 128 MiB or more.

    Every step allocates the same memory. By default most of it is returned to the kernel each time, which zeroes
    every page before reuse: a seventh of a small model's prefill time.
    """
    if hasattr(libc, "mallopt"):
        libc.mallopt(TRIM_THRESHOLD, KEPT)
        libc.mallopt(MMAP_THRESHOLD, LARGE)


def return_freed_memory() -> None:
    """Return the memory that glibc keeps to the kernel."""
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
