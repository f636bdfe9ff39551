"""The costs of each test file: `pytest -p costs` writes one line of JSON per file to COSTS_FOLDER, a folder.

`python tests/costs.py FOLDER` prints them as a table, the most expensive first.
"""

import importlib
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

# Arguments of the commands that start an engine: `python -m engine_server.core` and `fairlead engine`.
ENGINE_COMMANDS = {"engine_server.core", "engine"}


@dataclass(frozen=True)
class Reading:
    wall: float
    cpu: float


class Costs:
    """The costs of the file that this process is running."""

    def __init__(self, folder: Path) -> None:
        self._log = (folder / f"{os.getpid()}.jsonl").open("w")
        self._file: str | None = None
        self._start = read_costs()
        self._engines = 0
        self._tests = 0

    def begin_test(self, file: str) -> None:
        if file != self._file:
            self.end_file()
            self._file = file
        self._tests += 1

    def count_engine(self) -> None:
        self._engines += 1

    def end_file(self) -> None:
        now = read_costs()
        if self._file is not None:
            line = {
                "file": self._file,
                "tests": self._tests,
                "wall": now.wall - self._start.wall,
                "cpu": now.cpu - self._start.cpu,
                "engines": self._engines,
            }
            print(json.dumps(line), file=self._log, flush=True)
        self._start, self._engines, self._tests = now, 0, 0


def read_costs() -> Reading:
    """Read this process's and its descendants' costs, those that have ended included.

    CPU seconds of a process whose parent ended before it are lost, so that a file can cost less than nothing.
    """
    own = os.times()
    cpu = own.user + own.system + own.children_user + own.children_system
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            times = process.cpu_times()
            cpu += times.user + times.system + times.children_user + times.children_system
    return Reading(time.monotonic(), cpu)


COSTS = pytest.StashKey[Costs]()


def pytest_configure(config: pytest.Config) -> None:
    # With workers, the process that distributes the tests runs none.
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        folder = Path(os.environ["COSTS_FOLDER"])
        folder.mkdir(parents=True, exist_ok=True)
        config.stash[COSTS] = costs = Costs(folder)
        count_engines(costs)


def count_engines(costs: Costs) -> None:
    """Count the engine cores made in this process, and the processes with an engine that it starts."""

    class Finder:
        def find_spec(self, name: str, path: Any, target: Any = None) -> None:
            if name == "engine_server.core.engine_core":
                sys.meta_path.remove(self)
                core = importlib.import_module(name).EngineCore
                create = core.__init__

                def counted(*args: Any, **kwargs: Any) -> None:
                    costs.count_engine()
                    create(*args, **kwargs)

                core.__init__ = counted

    def count_process(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "subprocess.Popen" and ENGINE_COMMANDS & set(map(str, arguments[1])):
            costs.count_engine()

    sys.meta_path.insert(0, Finder())
    sys.addaudithook(count_process)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[Any]:
    if COSTS in item.config.stash:
        item.config.stash[COSTS].begin_test(item.nodeid.partition("::")[0])
    return (yield)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if COSTS in session.config.stash:
        session.config.stash[COSTS].end_file()


def main(folder: Path) -> None:
    totals: dict[str, Counter[str]] = {}
    for log in folder.glob("*.jsonl"):
        for line in map(json.loads, log.read_text().splitlines()):
            file = line.pop("file")
            totals.setdefault(file, Counter()).update(line)
    print(f"{'file':64}{'tests':>7}{'wall s':>9}{'CPU s':>9}{'engines':>9}")
    for file, cost in sorted(totals.items(), key=lambda entry: -entry[1]["wall"]):
        print(f"{file:64}{cost['tests']:7.0f}{cost['wall']:9.1f}{cost['cpu']:9.1f}{cost['engines']:9.0f}")
    everything = sum(totals.values(), Counter())
    print(
        f"{'all':64}{everything['tests']:7.0f}{everything['wall']:9.1f}{everything['cpu']:9.1f}{everything['engines']:9.0f}"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
