"""Processes of a benchmark: started, awaited, measured and stopped."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

START_SECONDS = 60.0
STOP_SECONDS = 5.0


class CpuTimes(NamedTuple):
    """CPU time in seconds."""

    user: float
    kernel: float


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def process(*command: str, log: Path, folder: Path | None = None) -> Iterator[int]:
    """Run a command in a session of its own, with its output in `log`; yield its pid, and stop it at the end.

    folder: in which it runs; a Python module comes from there.
    """
    with log.open("wb") as output:
        running = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True, cwd=folder)
    try:
        yield running.pid
    finally:
        running.send_signal(signal.SIGINT)
        try:
            running.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()


def python(module: str, *arguments: str) -> tuple[str, ...]:
    """Return the command that runs a module in this interpreter."""
    return (sys.executable, "-m", module, *arguments)


def await_answer(url: str, body: bytes, headers: Mapping[str, str], seconds: float = START_SECONDS) -> None:
    """Post until the answer is 200. Raises OSError after `seconds`."""
    request = urllib.request.Request(url, body, {"Content-Type": "application/json", **headers})
    deadline = time.monotonic() + seconds
    while True:
        try:
            with urllib.request.urlopen(request, timeout=5) as response:
                response.read()
                return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def family(pid: int) -> list[int]:
    """Return a process and its descendants."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    members = [pid]
    for member in members:
        members.extend(child for child, parent in parents.items() if parent == member)
    return members


def cpu_times(pid: int) -> CpuTimes:
    """Return the CPU time that a process and its descendants have used."""
    user = kernel = 0
    for member in family(pid):
        fields = Path(f"/proc/{member}/stat").read_text().rpartition(")")[2].split()
        user += int(fields[11])
        kernel += int(fields[12])
    tick = 1 / os.sysconf("SC_CLK_TCK")
    return CpuTimes(tick * user, tick * kernel)


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process and its descendants have used, the kernel's included."""
    return sum(cpu_times(pid))


def resident_mb(pid: int) -> float:
    """Return the resident memory of a process and its descendants in MB (10^6 bytes)."""
    pages = sum(int(Path(f"/proc/{member}/statm").read_text().split()[1]) for member in family(pid))
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
