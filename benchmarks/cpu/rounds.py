"""Sides measured in turn, round by round, under rules that keep a busy machine's figures out of the medians."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Literal, NamedTuple

from benchmarks.router.processes import family

# A work is measured again if the rounds of one of its sides differ by more than this factor.
SPREAD = 1.3
# A side that goes on catches up with its timers before it is measured.
SETTLE_SECONDS = 0.5
# Of a measurement, so that it takes seconds.
LEAST_REQUESTS = 4


# Output tokens a second; the seconds until all requests have their first token; the longest time between two tokens.
Figure = Literal["tok/s", "first token, s", "longest gap, s"]


class Work(NamedTuple):
    """The load of a measurement."""

    requests_at_a_time: int
    prompt_tokens: int = 128
    new_tokens: int = 128
    figure: Figure = "tok/s"
    # The tokens of prompts that one more client sends meanwhile, one after another.
    tokens_beside: int = 0


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
            with alone(side, sides):
                figures[side.name].append(side.measure(work, number))
            print(f"{work}, round {number + 1}: {side.name} {figures[side.name][-1]:.2f}", file=sys.stderr)
    return {name: Cell(median(values), max(values) / min(values)) for name, values in figures.items()}


@contextmanager
def alone(side: Side, sides: Sequence[Side]) -> Iterator[None]:
    """Stop the processes of all other sides meanwhile. An idle vLLM would use 2 % of a CPU."""
    others = [pid for other in sides if other is not side for pid in family(other.pid)]
    send(signal.SIGSTOP, others)
    try:
        time.sleep(SETTLE_SECONDS)
        yield
    finally:
        send(signal.SIGCONT, others)


def send(number: signal.Signals, pids: Iterable[int]) -> None:
    for pid in pids:
        os.kill(pid, number)
