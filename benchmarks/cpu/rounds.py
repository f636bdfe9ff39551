"""Sides measured in turn, round by round, under rules that keep a busy machine's figures out of the medians."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from benchmarks.router.processes import cpu_seconds

# A work is measured again if the rounds of one of its sides differ by more than this factor.
SPREAD = 1.3
# A measurement is void if an idle side used more than this share of a CPU meanwhile.
IDLE = 0.02
# Void measurements of a side, one after the other, that end the comparison.
MOST_VOID = 5
# What a side's process does after an answer: its threads wait for work before they sleep.
SETTLE_SECONDS = 0.3


class Work(NamedTuple):
    """What is asked of a side at once."""

    requests_at_a_time: int
    prompt_tokens: int = 128
    new_tokens: int = 128
    # The figure is the seconds to the first token instead of output tokens a second.
    to_first_token: bool = False


class Side(NamedTuple):
    """One of the engines that are compared, running."""

    name: str
    pid: int
    # The figure of a work, with prompts that no other round number has had.
    measure: Callable[[Work, int], float]


class Cell(NamedTuple):
    """A side's figure for a work."""

    median: float
    # The highest round divided by the lowest.
    spread: float


def compare(sides: Sequence[Side], work: Work, rounds: int) -> Mapping[str, Cell]:
    """Return each side's figure; measure all sides again, once, if the rounds of one differ too much."""
    cells = measure_rounds(sides, work, range(rounds))
    if max(cell.spread for cell in cells.values()) > SPREAD:
        print(f"rounds differ by more than {SPREAD}: measuring again", file=sys.stderr)
        cells = measure_rounds(sides, work, range(rounds, 2 * rounds))
    return cells


def measure_rounds(sides: Sequence[Side], work: Work, numbers: range) -> Mapping[str, Cell]:
    figures: dict[str, list[float]] = {side.name: [] for side in sides}
    for number in numbers:
        for side in sides:
            figures[side.name].append(measure_alone(side, sides, work, number))
            print(f"{work}, round {number + 1}: {side.name} {figures[side.name][-1]:.2f}", file=sys.stderr)
    return {name: Cell(median(values), max(values) / min(values)) for name, values in figures.items()}


def measure_alone(side: Side, sides: Sequence[Side], work: Work, number: int) -> float:
    """Return a figure that was measured while the other sides were idle. Raises SystemExit if they never are."""
    for attempt in range(MOST_VOID):
        time.sleep(SETTLE_SECONDS)
        before, started = {one.name: cpu_seconds(one.pid) for one in sides}, time.monotonic()
        figure = side.measure(work, number * MOST_VOID + attempt)
        limit = IDLE * (time.monotonic() - started)
        busy = [
            one.name for one in sides if one is not side and cpu_seconds(one.pid) - before[one.name] > limit
        ]
        if not busy:
            return figure
        print(f"void: {', '.join(busy)} used over {IDLE:.0%} of a CPU meanwhile", file=sys.stderr)
    raise SystemExit(f"{', '.join(busy)} did not stay idle while {side.name} was measured")
