"""The costs of tests: what each file starts, and the CPU seconds of all its processes."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import costs
import pytest
from bounds import by_folder, exceeded
from run import TESTS

STARTS = """
import subprocess, sys
import pytest

# A child that ends before its own child, which computes for a while.
ORPHANS = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]])"
COMPUTES = "import time\\nwhile time.process_time() < 1.0: pass"

@pytest.fixture(scope="session")
def shared():
    subprocess.run([sys.executable, "-c", "", "engine"], check=True)

def test_starts_a_server(shared):
    subprocess.run([sys.executable, "-c", "", "router"], check=True)

def test_computes_in_an_orphan():
    subprocess.run([sys.executable, "-c", ORPHANS, COMPUTES], check=True, stdout=subprocess.PIPE)
"""


def test_starts_and_cpu_seconds_of_all_processes_are_those_of_their_file(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(STARTS)
    environment = os.environ | {"COSTS_FOLDER": str(tmp_path / "costs"), "PYTHONPATH": str(TESTS)}
    environment |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
    command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, f"--rootdir={tmp_path}", "-p", "costs"]
    subprocess.run([*command, tmp_path], cwd=tmp_path, env=environment, check=True, stdout=subprocess.PIPE)

    spent = costs.read([tmp_path / "costs"])

    own, shared = spent["test_it.py"], spent["shared: shared"]
    assert (own["tests"], own["processes"], own["servers"], own["engines"]) == (2, 2, 1, 0)
    assert (shared["processes"], shared["engines"], shared["servers"]) == (1, 1, 1)
    assert own["cpu"] >= 1.0


@pytest.mark.parametrize(("processes", "is_beyond"), [(3, False), (4, True)])
def test_a_folder_that_starts_more_than_its_row_allows_is_named(processes: int, is_beyond: bool) -> None:
    folders = by_folder(
        {
            "tests/core/test_a.py": Counter(processes=1),
            "tests/core/sub/test_b.py": Counter(processes=processes - 1),
        }
    )

    beyond = exceeded(folders, {"core": {"processes": 3}})

    assert [line.split(":")[0] for line in beyond] == (
        ["tests of core start 4 processes, and starts.toml allows 3"] if is_beyond else []
    )


def test_what_workers_share_has_no_bound_and_a_folder_without_a_row_may_start_nothing() -> None:
    folders = by_folder({"shared: server": Counter(engines=2), "tests/test_a.py": Counter(engines=1)})

    assert [line.partition(" start ")[0] for line in exceeded(folders, {})] == ["tests of tests"]
