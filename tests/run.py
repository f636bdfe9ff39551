"""Run the tests in parts side by side and end in one line: `make test` calls this.

    python tests/run.py [--tier TIER] [--only FOLDER | --changed]

Workers of one part share what is expensive to start, and import only what its tests need: the control plane's never
import torch. The first part's output is shown; those of others are files, which are printed whole when a test failed.
A folder whose tests of the default tier start more than its row of starts.toml fails the run.
"""

import argparse
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import costs
from bounds import by_folder, exceeded, read_bounds
from selection import changed_tests
from tiers import SELECTIONS

ROOT = Path(__file__).parent.parent
TESTS = ROOT / "tests"
LOGS = ROOT / "build" / "tests"
# The last line of the run of a tier.
SUMMARY = "TIER={}.summary"
CONTROL_PLANE = ("bench", "charts", "compat", "contract", "local", "operator", "release", "router", "shared")
# `make e2e` runs these.
END_TO_END = "e2e"
KERNELS = "kernels"
# Tests of the HTTP server share servers; most other tests with torch compute.
SERVER = "server"
COSTS = ("-p", "costs")
CPUS = os.cpu_count() or 1
MOST_WORKERS = 4
NUM_SLOWEST = 10
EMPTY = 5


@dataclass(frozen=True)
class Part:
    """Tests that one pytest process runs."""

    name: str
    paths: list[Path]
    options: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def log(self) -> Path:
        return LOGS / f"{self.name}.log"

    @property
    def report(self) -> Path:
        return LOGS / f"{self.name}.xml"

    @property
    def costs(self) -> Path:
        return LOGS / f"{self.name}.costs"

    def start(self, options: list[str], visible: bool) -> subprocess.Popen[bytes]:
        """Start pytest; its output is this process's, or the log."""
        self.report.unlink(missing_ok=True)
        shutil.rmtree(self.costs, ignore_errors=True)
        command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={self.report}", *self.options, *options]
        command += map(str, self.paths)
        environment = (
            os.environ | {"OMP_NUM_THREADS": "1", "COSTS_FOLDER": str(self.costs)} | self.environment
        )
        with self.log.open("wb") as log:
            output = None if visible else log
            return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=output)


@dataclass
class Outcome:
    """Counts and durations of the tests of all parts."""

    passed: int = 0
    # Names of the tests that failed.
    failed: list[str] = field(default_factory=list)
    # Tests skipped for each reason.
    skipped: Counter[str] = field(default_factory=Counter)
    # Seconds of each test.
    seconds: list[tuple[float, str]] = field(default_factory=list)

    def add(self, report: Path) -> None:
        for case in ElementTree.parse(report).iter("testcase"):
            name = f"{case.get('classname')}::{case.get('name')}"
            self.seconds.append((float(case.get("time", 0)), name))
            skip = case.find("skipped")
            if case.find("failure") is not None or case.find("error") is not None:
                self.failed.append(name)
            elif skip is not None:
                self.skipped[skip.get("message") or "no reason given"] += 1
            else:
                self.passed += 1

    def show(self) -> None:
        print(f"the {NUM_SLOWEST} slowest:")
        for seconds, name in sorted(self.seconds, reverse=True)[:NUM_SLOWEST]:
            print(f"{seconds:8.1f} s  {name}")
        if self.skipped:
            print("skipped:")
        for reason, count in self.skipped.most_common():
            print(f"{count:8}    {reason}")
        for name in self.failed:
            print(f"failed: {name}")

    def counts(self) -> str:
        return f"{self.passed} passed, {len(self.failed)} failed, {self.skipped.total()} skipped"


def divide(paths: list[Path], every_tier: bool) -> list[Part]:
    """Divide test files and folders among the parts; those without tests are left out."""
    areas = {path: path.relative_to(TESTS).parts[0] for path in paths}
    elsewhere = (*CONTROL_PLANE, SERVER, END_TO_END, KERNELS)
    engine = [path for path, area in areas.items() if area not in elsewhere]
    server = [path for path, area in areas.items() if area == SERVER]
    control_plane = [path for path, area in areas.items() if area in CONTROL_PLANE]
    kernels = [path for path, area in areas.items() if area == KERNELS] if every_tier else []
    parts = [
        Part("engine", engine, workers(CPUS // 2)),
        Part("server", server, workers(CPUS // 2)),
        Part("control-plane", control_plane, (*workers(CPUS), "-p", "no_torch")),  # which often waits
        Part("kernels", kernels, COSTS, {"TRITON_INTERPRET": "1"}),
    ]
    return [part for part in parts if part.paths]


def workers(number: int) -> tuple[str, ...]:
    """Return the options for so many workers, within bounds. No file is divided among them."""
    return *COSTS, f"--numprocesses={min(max(number, 1), MOST_WORKERS)}", "--dist=loadfile"


def run(parts: list[Part], tier: str, partial: bool) -> bool:
    """Run the parts side by side.

    Return True if all tests passed, there were some unless it's a partial run, and no folder has started more than
    its row of starts.toml, which has bounds for the default tier.
    """
    LOGS.mkdir(parents=True, exist_ok=True)
    summary = LOGS / SUMMARY.format(tier)
    summary.unlink(missing_ok=True)
    options = ["-m", SELECTIONS[tier], *(["--hypothesis-profile=thorough"] if tier == "all" else [])]
    running = [(part, part.start(options, visible=part is parts[0])) for part in parts]
    outcome, complete = Outcome(), True
    for part, process in running:
        code = process.wait()
        if part.report.exists():
            outcome.add(part.report)
        may_be_empty = partial or part.name == KERNELS  # without Triton there is nothing to interpret
        if code == 0 or (code == EMPTY and may_be_empty):
            continue
        complete = False
        if part is not parts[0]:
            print(f"== {part.log.relative_to(ROOT)}\n{part.log.read_text(errors='replace')}")
        print(f"the tests of {part.name} ended with exit code {code}")
    outcome.show()
    folders = by_folder(costs.read(part.costs for part in parts))
    print(f"seconds, CPU seconds and starts by folder:\n{costs.table(folders)}")
    beyond = exceeded(folders, read_bounds()) if tier == "default" else []
    for line in beyond:
        print(line)
    summary.write_text(outcome.counts() + "\n")
    print(outcome.counts(), flush=True)
    return complete and not outcome.failed and not beyond


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tier", choices=("default", "more", "all"), default="default", help="see tiers.py")
    selection = parser.add_mutually_exclusive_group()
    selection.add_argument("--only", metavar="FOLDER", help="a folder or file of tests/, such as router")
    selection.add_argument("--changed", action="store_true", help="what the changes since main touch")
    arguments = parser.parse_args()
    if arguments.only:
        paths = [TESTS / arguments.only]
        if not paths[0].exists():
            areas = sorted(
                path.name for path in TESTS.iterdir() if path.is_dir() and path.name[0] not in "._"
            )
            parser.error(f"there is no tests/{arguments.only}; tests/ has {', '.join(areas)}")
    elif arguments.changed:
        paths = changed_tests(ROOT)
        print(f"{len(paths)} files are affected by the changes since main")
    else:
        paths = [path for path in sorted(TESTS.iterdir()) if path.is_dir() or path.name.startswith("test_")]
        paths = [path for path in paths if path.is_file() or any(path.rglob("test_*.py"))]
    parts = divide(paths, arguments.tier == "all" or arguments.only == KERNELS)
    if arguments.only and not parts:
        parser.error(f"tests/{arguments.only} has end-to-end tests, which `make e2e` runs")
    return 0 if run(parts, arguments.tier, bool(arguments.only or arguments.changed)) else 1


if __name__ == "__main__":
    sys.exit(main())
