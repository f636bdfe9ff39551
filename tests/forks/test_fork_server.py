"""A task runs in a fork of its own, whose limits end that task alone."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import until

from engine_server.forks.frames import Frame, read_frame, write_frame

SERVER = """
import os, signal, sys
from engine_server.forks.fork_server import ForkServer
from engine_server.forks.limits import Limits

def run(task):
    action, _, argument = bytes(task).decode().partition(" ")
    match action:
        case "repeat": return b"a" * int(argument)
        case "allocate": return bytes(int(argument))[:3]
        case "spin":
            while True: pass
        case "raise": raise ValueError
        case "print":
            os.write(1, b"printed"); print("printed", flush=True); return b"done"
        case "read": return os.read(0, 1) + b"end"
        case "kill": os.kill(os.getpid(), int(argument))

ForkServer(run, lambda status: b"ended %d" % os.WTERMSIG(status), Limits(0.2, 64 << 20, 100_000), 2).serve()
"""


@pytest.fixture(scope="module")
def server() -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-P", "-c", SERVER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait() == 0


def results(server: subprocess.Popen[bytes], *tasks: str) -> list[bytes]:
    """Return the results of tasks that are sent at once."""
    assert server.stdin is not None and server.stdout is not None
    for number, task in enumerate(tasks):
        write_frame(server.stdin, Frame(number, task.encode()))
    found: dict[int, bytes] = {}
    while len(found) < len(tasks):
        frame = read_frame(server.stdout)
        assert frame is not None
        found[frame.number] = bytes(frame.content)
    return [found[number] for number in range(len(tasks))]


def test_results_come_back_under_the_numbers_of_their_tasks(server: subprocess.Popen[bytes]) -> None:
    sizes = [0, 1, 99_999, 100_000, 5, 70_000]
    assert results(server, *(f"repeat {size}" for size in sizes)) == [b"a" * size for size in sizes]


@pytest.mark.parametrize(
    ("task", "result"),
    [
        ("spin", f"ended {signal.SIGPROF.value}"),
        (f"allocate {1 << 30}", "ended 0"),  # MemoryError
        ("repeat 100001", "ended 0"),
        ("raise", "ended 0"),
        (f"kill {signal.SIGKILL.value}", f"ended {signal.SIGKILL.value}"),
    ],
)
def test_limit_or_fault_ends_one_task_alone(server: subprocess.Popen[bytes], task: str, result: str) -> None:
    assert results(server, task, "repeat 2", task, "repeat 3") == [
        result.encode(),
        b"aa",
        result.encode(),
        b"aaa",
    ]


def test_fork_has_neither_the_input_nor_the_output_of_its_server(server: subprocess.Popen[bytes]) -> None:
    assert results(server, "print", "read", f"allocate {1 << 20}") == [b"done", b"end", bytes(3)]


def test_server_leaves_no_files_open(server: subprocess.Popen[bytes]) -> None:
    def num_files() -> int:
        return len(list(Path(f"/proc/{server.pid}/fd").iterdir()))

    results(server, "spin")
    idle = [*range(3), "selector"]
    until(lambda: num_files() == len(idle))
    results(server, *["repeat 1"] * 20)
    until(lambda: num_files() == len(idle))
