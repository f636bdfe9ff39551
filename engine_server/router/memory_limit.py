"""The memory that this process may use."""

import os
from pathlib import Path

# For each connection of a client; an idle one takes about 6.
CONNECTION_BYTES = 16 * 1024
# The limit of this process's control group, version 2 and 1.
CGROUP_FILES = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def memory_limit() -> int:
    """Return the bytes of the machine's memory, or of the control group's limit if that is less."""
    limit = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for file in map(Path, CGROUP_FILES):
        if file.is_file() and (text := file.read_text().strip()) != "max":
            limit = min(limit, int(text))
    return limit
