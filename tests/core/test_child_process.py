"""Child processes: ignored signals, and the report of their end."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from waiting import PATIENCE, until

from engine_server.core.distributed.child_process import Child

MODULE = """
import sys
from pathlib import Path
from engine_server.core.distributed.child_process import run

here = Path(__file__).parent

def serve(folder, fail):
    (here / "serving").touch()
    with open(here / "orders") as orders:  # a FIFO: blocks until the test writes
        order = orders.read()
    print("child read", order, file=sys.stderr)
    if order == "fail":
        fail("the reason")
    sys.exit(3)

with open(here / "start") as start:
    start.read()
run("child", serve)
"""


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Child]:
    """Return a child that waits for the test before it calls `run`, and again in its main function."""
    (tmp_path / "child_module.py").write_text(MODULE)
    for name in ("start", "orders"):
        os.mkfifo(tmp_path / name)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    child = Child("the child", "child_module", str(tmp_path / "folder"))
    yield child
    child.process.kill()
    child.wait(timeout=PATIENCE)


@pytest.fixture
def write(child: Child, tmp_path: Path) -> Callable[[str, str], None]:
    """Return a function that writes to a FIFO once the child reads it; the test fails if the child ends before."""

    def write(name: str, text: str) -> None:
        def open_pipe() -> int | None:
            if child.process.poll() is not None:
                pytest.fail(f"the child ended with status {child.process.returncode} before it read {name}")
            try:
                return os.open(tmp_path / name, os.O_WRONLY | os.O_NONBLOCK)
            except OSError:  # nobody reads
                return None

        with os.fdopen(until(open_pipe), "w") as pipe:
            pipe.write(text)

    return write


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_child_ignores_signals_to_the_process_group_from_its_first_instruction(
    child: Child, write: Callable[[str, str], None], tmp_path: Path, number: signal.Signals
) -> None:
    child.process.send_signal(number)
    write("start", "go")
    until((tmp_path / "serving").exists)
    child.process.send_signal(number)
    write("orders", "fail")
    assert "ended with status 1: the reason" in child.death()


def test_death_returns_the_same_reason_to_every_caller(
    child: Child, write: Callable[[str, str], None]
) -> None:
    write("start", "go")
    write("orders", "fail")
    first = child.death()
    assert "the reason" in first
    assert child.death() == first


def test_death_contains_the_exit_status_and_the_last_log_lines(
    child: Child, write: Callable[[str, str], None], capfd: pytest.CaptureFixture[str]
) -> None:
    write("start", "go")
    write("orders", "exit")
    assert child.death().splitlines() == [
        f"the child (process {child.process.pid}) ended with status 3",
        "its last log lines:",
        "child read exit",
    ]
    assert "child read exit" in capfd.readouterr().err


def test_death_of_a_killed_child_names_the_signal(child: Child) -> None:
    child.process.kill()
    assert child.death() == f"the child (process {child.process.pid}) was ended by SIGKILL"
