"""The costs of each test file: `pytest -p costs` writes one line of JSON per file to COSTS_FOLDER, a folder.

`python tests/costs.py FOLDER...` prints them as a table, the most expensive first; `make test` leaves its own in
build/tests/*.costs.

What a fixture of the session starts is shared by the tests of a worker, and listed by the fixture's name: how often it
starts depends on the number of workers.
"""

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from orphans import Orphans
from starts import KINDS, count_starts

# Begins the names of fixtures of the session.
SHARED = "shared: "


@dataclass(frozen=True)
class Reading:
    """Seconds of a process and its descendants."""

    wall: float
    cpu: float


class Costs:
    """The costs of the file that this process is running."""

    def __init__(self, folder: Path) -> None:
        self._log = (folder / f"{os.getpid()}.jsonl").open("w")
        self._file: str | None = None
        self._start = read_costs()
        self._starts: Counter[str] = Counter()
        self._tests = 0
        # The fixture of the session that is being set up.
        self.fixture: str | None = None

    def begin_test(self, file: str) -> None:
        if file != self._file:
            self.end_file()
            self._file = file
        self._tests += 1

    def count(self, kinds: Counter[str]) -> None:
        if self.fixture is None:
            self._starts += kinds
        else:
            self._write(SHARED + self.fixture, kinds)

    def end_file(self) -> None:
        now = read_costs()
        if self._file is not None:
            seconds = {"wall": now.wall - self._start.wall, "cpu": now.cpu - self._start.cpu}
            self._write(self._file, Counter({"tests": self._tests, **seconds, **self._starts}))
        self._start, self._tests = now, 0
        self._starts.clear()

    def _write(self, name: str, costs: Counter[str]) -> None:
        print(json.dumps({"name": name, **costs}), file=self._log, flush=True)


def read_costs() -> Reading:
    """Read this process's and its descendants' costs, those that have ended included."""
    own = os.times()
    cpu = own.user + own.system + own.children_user + own.children_system
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            times = process.cpu_times()
            cpu += times.user + times.system + times.children_user + times.children_system
    return Reading(time.monotonic(), cpu)


COSTS = pytest.StashKey[Costs]()
ORPHANS = pytest.StashKey[Orphans]()


def pytest_configure(config: pytest.Config) -> None:
    # With workers, the process that distributes the tests runs none.
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        folder = Path(os.environ["COSTS_FOLDER"])
        folder.mkdir(parents=True, exist_ok=True)
        config.stash[COSTS] = costs = Costs(folder)
        config.stash[ORPHANS] = orphans = Orphans()
        count_starts(costs.count, orphans.own)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    costs = request.config.stash.get(COSTS, None)
    if costs is None or fixturedef.scope != "session":
        return (yield)
    outer, costs.fixture = costs.fixture, fixturedef.argname
    try:
        return (yield)
    finally:
        costs.fixture = outer


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[Any]:
    if COSTS in item.config.stash:
        item.config.stash[COSTS].begin_test(item.nodeid.partition("::")[0])
    return (yield)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if COSTS in session.config.stash:
        session.config.stash[COSTS].end_file()
        session.config.stash[ORPHANS].stop()


def read(folders: Iterable[Path]) -> dict[str, Counter[str]]:
    """Return the costs by file, and those that files share by the name of the fixture."""
    totals: dict[str, Counter[str]] = {}
    for log in (log for folder in folders for log in folder.glob("*.jsonl")):
        for line in map(json.loads, log.read_text().splitlines()):
            totals.setdefault(line.pop("name"), Counter()).update(line)
    return totals


def table(spent: Mapping[str, Counter[str]]) -> str:
    """Return the costs as a table with one row for all at its end; wall and CPU are in seconds."""
    columns = ("tests", "wall", "cpu", *KINDS)
    rows = [*spent.items(), ("all", sum(spent.values(), Counter()))]
    head = "".join(f"{column:>12}" for column in columns)
    lines = ["".join(f"{costs[column]:12.0f}" for column in columns) for _, costs in rows]
    width = max(len(name) for name, _ in rows)
    return "\n".join(
        [
            f"{'':{width}}{head}",
            *(f"{name:{width}}{line}" for (name, _), line in zip(rows, lines, strict=True)),
        ]
    )


if __name__ == "__main__":
    spent = read(map(Path, sys.argv[1:]))
    print(table(dict(sorted(spent.items(), key=lambda entry: -entry[1]["cpu"]))))
