"""OpenMP threads: as many as the quota allows, spinning only while each has its own CPU."""

import os
from pathlib import Path

import pytest
import torch
from waiting import until

from engine_server.modeling.platform import cpu_quota as quota_module
from engine_server.modeling.platform import spinning
from engine_server.modeling.platform.cpu import CpuPlatform
from engine_server.modeling.platform.cpu_quota import available_cpus, cpu_quota
from engine_server.modeling.platform.spinning import FIRST_HOLD, INTERVAL, LONGEST_HOLD, SpinLimit


class Machine:
    """A fake clock, and the time that this process's threads have waited for CPUs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.waited = 1000.0, 5.0
        monkeypatch.setattr(spinning.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(spinning, "seconds_waited", lambda: self.waited)

    def run(self, limit: SpinLimit, seconds: float, contended: bool) -> float:
        """Run steps of 50 ms; return the number of seconds for which spinning was limited."""
        limited = 0.0
        for _ in range(round(seconds / 0.05)):
            self.now += 0.05
            self.waited += 0.03 if contended and not limit.limited else 0.0
            limit.follow_load()
            limited += 0.05 * limit.limited
        return limited


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def test_threads_spin_while_each_has_its_own_cpu(machine: Machine) -> None:
    limit = SpinLimit()
    assert machine.run(limit, 60, contended=False) == 0


def test_spinning_is_limited_within_two_reads_of_contention_and_then_rarely_lifted(machine: Machine) -> None:
    limit = SpinLimit()
    limited = machine.run(limit, 300, contended=True)
    assert limited > 0.99 * 300


def test_spin_limit_is_lifted_once_the_other_process_has_ended(machine: Machine) -> None:
    limit = SpinLimit()
    machine.run(limit, 4 * INTERVAL, contended=True)
    assert limit.limited
    machine.run(limit, FIRST_HOLD + 1, contended=False)
    assert not limit.limited
    machine.run(limit, 300, contended=True)  # the limit is now held longer
    machine.run(limit, LONGEST_HOLD + 1, contended=False)
    assert not limit.limited


def test_libgomp_manages_more_threads_than_cpus_while_spinning_is_limited() -> None:
    openmp = spinning.find_openmp()
    assert openmp is not None
    ones = torch.ones(256, 256)
    product = ones @ ones
    before = {task.name for task in spinning.TASKS.iterdir()}

    def added() -> set[str]:
        return {task.name for task in spinning.TASKS.iterdir()} - before

    team = spinning.ExtraTeam(openmp)
    until(lambda: len(added()) + torch.get_num_threads() > len(os.sched_getaffinity(0)))
    assert torch.equal(ones @ ones, product)
    team.end()
    until(lambda: not added())


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
