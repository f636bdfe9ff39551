"""The engine on a GPU, compared with the device's limits: one command, within ten minutes.

    python -m benchmarks.gpu [--only PART ...] [--output FILE]

Needs torch, Triton and transformers for the GPU, and the wheels that `make wheels` collects. Weights are random, so
nothing is downloaded. The device's limits are measured first; docs/benchmarks.md explains the figures. A part that
fails reports why, and the others go on.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from threading import Timer
from typing import NamedTuple

from benchmarks.gpu.parts import GOALS, PARTS, Part
from benchmarks.gpu.report import Row, compared
from benchmarks.record import save

LIMITS = "limits"  # the part that all others are held to
RATES = ("TB/s", "TFLOP/s")  # of which limits are told
WORDS = 10_000  # characters of what a part said last


class Outcome(NamedTuple):
    seconds: float
    failed: str | None  # why it ended early
    log: str
    rows: list[Row]


def measure(part: Part, seconds: float, limits: Mapping[str, float]) -> Outcome:
    """Run a part and print its rows as they arrive."""
    print(f"\n== {part.name}: {part.what}", flush=True)
    command = [sys.executable, "-m", "benchmarks.gpu.parts", part.name, str(seconds), json.dumps(limits)]
    started, rows, failed = time.monotonic(), [], None
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True)
        timer = Timer(seconds, process.kill)
        timer.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                rows.append(Row(*json.loads(line)))
                print(rows[-1], flush=True)
            if code := process.wait():
                failed = (
                    f"it ended with {code}" if timer.is_alive() else f"it took longer than {seconds:.0f} s"
                )
        finally:
            timer.cancel()
            process.kill()
        said.seek(0)
        log = said.read()[-WORDS:]
    print(
        "".join(line for line in log.splitlines(keepends=True) if failed or line.startswith("engine_server"))
    )
    if failed:
        print(f"FAILED: {failed}", flush=True)
    return Outcome(time.monotonic() - started, failed, log, rows)


def measure_all(names: Collection[str]) -> dict[str, Outcome]:
    """Run the parts; each may take its own seconds and those that earlier parts left."""
    outcomes: dict[str, Outcome] = {}
    limits: dict[str, float] = {}
    seconds = 0.0
    for part in (part for part in PARTS if part.name in names):
        seconds += part.seconds
        outcomes[part.name] = outcome = measure(part, seconds, limits)
        seconds -= outcome.seconds
        if part.name == LIMITS:
            rates = [(row.name, row.measures.get(unit)) for row in outcome.rows for unit in RATES]
            limits = {name: rate for name, rate in rates if rate is not None}
    return outcomes


def main() -> int:
    names = [part.name for part in PARTS]
    parser = argparse.ArgumentParser(description="Measure the engine on a GPU.")
    parser.add_argument(
        "--only", nargs="+", choices=names, metavar="PART", default=names,
        help="beside the limits: " + ", ".join(f"'{name}'" for name in names),
    )  # fmt: skip
    parser.add_argument("--output", type=Path, metavar="FILE", help="the file to save the result to, as JSON")
    flags = parser.parse_args()
    outcomes = measure_all({LIMITS, *flags.only})
    print("\n== summary")
    for goal in GOALS:
        if goal.part in outcomes:
            print(goal.verdict(outcomes[goal.part].rows))
    for line in compared({name: outcome.rows for name, outcome in outcomes.items()}):
        print(line)
    for name, outcome in outcomes.items():
        print(f"{outcome.seconds:6.0f} s  {name}" + (": FAILED" if outcome.failed else ""))
    told = {
        name: {**outcome._asdict(), "rows": [row._asdict() for row in outcome.rows]}
        for name, outcome in outcomes.items()
    }
    print(f"saved {save('gpu', {'parts': told}, flags.output)}")
    return int(any(outcome.failed for outcome in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
