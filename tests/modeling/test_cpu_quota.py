"""Threads on a CPU: as many as the quota allows."""

import os
from pathlib import Path

import pytest
import torch

from engine_server.modeling.platform import cpu_quota as quota_module
from engine_server.modeling.platform.cpu import CpuPlatform
from engine_server.modeling.platform.cpu_quota import available_cpus, cpu_quota


@pytest.mark.parametrize(
    ("lines", "files", "quota"),
    [
        ("0::/pod/engine", {"pod/engine/cpu.max": "max 100000", "pod/cpu.max": "250000 100000"}, 2.5),
        ("0::/", {"cpu.max": "50000 100000"}, 0.5),
        ("0::/pod", {"pod/cpu.max": "max 100000"}, None),
        (
            "4:memory:/a\n1:cpu,cpuacct:/a",
            {"cpu,cpuacct/a/cpu.cfs_quota_us": "300000", "cpu,cpuacct/a/cpu.cfs_period_us": "100000"},
            3.0,
        ),
        ("1:cpu:/a", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ("1:cpu:/elsewhere", {"cpu/cpu.cfs_quota_us": "150000", "cpu/cpu.cfs_period_us": "100000"}, 1.5),
    ],
    ids=["ancestor's", "own", "none", "version 1", "version 1, none", "version 1, mounted in a container"],
)
def test_quota_is_the_smallest_of_the_control_groups(
    tmp_path: Path, lines: str, files: dict[str, str], quota: float | None
) -> None:
    cgroups = tmp_path / "cgroup"
    cgroups.write_text(lines + "\n")
    for name, text in files.items():
        file = tmp_path / "mount" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    assert cpu_quota(cgroups, tmp_path / "mount") == quota


@pytest.mark.parametrize(("quota", "cpus"), [(None, 8), (3.9, 3), (0.5, 1), (64.0, 8)])
def test_available_cpus_are_the_quota_rounded_down_within_the_affinity(
    monkeypatch: pytest.MonkeyPatch, quota: float | None, cpus: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(quota_module, "cpu_quota", lambda: quota)
    assert available_cpus() == cpus


@pytest.mark.parametrize(("asked", "threads"), [(None, 1), ("2", 2)])
def test_platform_uses_as_many_threads_as_the_quota_unless_the_user_sets_them(
    monkeypatch: pytest.MonkeyPatch, asked: str | None, threads: int
) -> None:
    before = torch.get_num_threads()
    monkeypatch.setattr(quota_module, "cpu_quota", lambda: 1.5)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if asked is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", asked)
    torch.set_num_threads(2)
    try:
        CpuPlatform()
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
