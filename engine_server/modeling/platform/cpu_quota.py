"""The CPU quota of this process's control groups, version 2 and 1."""

import os
from pathlib import Path

CGROUPS = Path("/proc/self/cgroup")
MOUNT = Path("/sys/fs/cgroup")


def available_cpus() -> int:
    """Return the number of CPUs for this process's threads: its affinity, or its quota rounded down; at least 1.

    A quota's fraction stays unused: an extra thread would exhaust the quota, and all threads would then be stopped
    until the next period, up to 100 ms later.
    """
    affinity = len(os.sched_getaffinity(0))
    quota = cpu_quota()
    return affinity if quota is None else max(1, min(affinity, int(quota)))


def cpu_quota(cgroups: Path = CGROUPS, mount: Path = MOUNT) -> float | None:
    """Return the smallest quota in CPUs of this process's control groups and their ancestors; None without one."""
    quotas = []
    for line in cgroups.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            quotas += [read_v2(folder) for folder in ancestors(mount, path)]
        elif "cpu" in controllers.split(","):
            quotas += [
                read_v1(folder) for name in (controllers, "cpu") for folder in ancestors(mount / name, path)
            ]
    return min((quota for quota in quotas if quota is not None), default=None)


def ancestors(mount: Path, path: str) -> list[Path]:
    """Return the folders of a control group and its ancestors; in a container, its own group is at the mount."""
    folder = mount / path.strip("/")
    return [folder, *(parent for parent in folder.parents if parent.is_relative_to(mount))]


def read_v2(folder: Path) -> float | None:
    """Return the quota in CPUs of one group, from "<microseconds or max> <period>"."""
    file = folder / "cpu.max"
    if not file.is_file():
        return None
    quota, period = file.read_text().split()
    return None if quota == "max" else int(quota) / int(period)


def read_v1(folder: Path) -> float | None:
    """Return the quota in CPUs of one group; -1 means no quota."""
    file = folder / "cpu.cfs_quota_us"
    if not file.is_file():
        return None
    quota, period = int(file.read_text()), int((folder / "cpu.cfs_period_us").read_text())
    return None if quota < 0 else quota / period
