"""The threads of the CPU kernels: every piece is computed once, whatever else the CPUs do."""

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from native_kernels import needs_kernels

from engine_server.modeling.native.build import FLAGS, find_compiler
from engine_server.modeling.native.levels import FOLDER

pytestmark = needs_kernels
SOURCES = (Path(__file__).with_name("threads_check.cpp"), FOLDER / "threads.cpp")
# Linux's flag of a process whose addresses are not random: the sanitizer takes certain ones for itself.
ADDR_NO_RANDOMIZE = 0x0040000
# A fork of a process whose threads are running computes the same.
FORK = """
import os, torch
from engine_server.modeling.formats.dense import DenseFormat
from engine_server.modeling.formats.native_floating import NativeFloatingFormat
torch.set_num_threads(4)
format = NativeFloatingFormat(DenseFormat(torch.nn.Parameter(torch.ones(256, 256), requires_grad=False), None))
values = torch.ones(8, 256)
expected = format.apply(values)
child = os.fork()
if child == 0:
    os._exit(0 if torch.equal(format.apply(values), expected) else 1)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.fixture
def busy_cpus() -> Iterator[None]:
    """Keep every CPU busy with another process."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in os.sched_getaffinity(0)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def check(folder: Path, programs: int, operations: int, *options: str) -> str:
    """Compile the check and run it with four threads; return what it prints."""
    compiler, program = find_compiler(), folder / "check"
    assert compiler is not None
    subprocess.run([compiler, *FLAGS, "-g", *options, f"-I{FOLDER}", *SOURCES, "-o", program], check=True)
    done = subprocess.run(
        [program, str(programs), str(operations)],
        env=os.environ | {"OMP_NUM_THREADS": "4"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: ctypes.CDLL(None).personality(ADDR_NO_RANDOMIZE),
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.thorough
def test_thread_sanitizer_finds_no_race(tmp_path: Path) -> None:
    assert check(tmp_path, 20, 50, "-fsanitize=thread") == "all pieces computed once\n"


@pytest.mark.more
def test_all_pieces_are_computed_once_beside_busy_processes(tmp_path: Path, busy_cpus: None) -> None:
    assert check(tmp_path, 1000, 50) == "all pieces computed once\n"


@pytest.mark.more
def test_a_fork_computes_with_threads_of_its_own() -> None:
    subprocess.run([sys.executable, "-c", FORK], check=True)
