"""What a part finds, as a row: its measures by their units, and what some of them should be at the least."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple


class Row(NamedTuple):
    name: str
    measures: dict[str, float]
    goals: dict[str, float] = {}  # noqa: RUF012 - never written to

    def reached(self, unit: str) -> bool:
        return self.measures[unit] >= self.goals[unit]

    def line(self) -> str:
        return f"{self.name:34}" + "   ".join(map(self._cell, self.measures))

    def _cell(self, unit: str) -> str:
        cell = f"{number(self.measures[unit])} {unit}"
        if unit in self.goals:
            cell += f" (goal {number(self.goals[unit])}: {'reached' if self.reached(unit) else 'missed'})"
        return cell


def beside(name: str, own: float, other: float, floor: float, limit: str, error: float) -> Row:
    """A kernel beside torch's, in seconds.

    floor: what the work takes at the device's limit; error: the largest difference from torch's.
    """
    measures = {"us": own * 1e6, f"% of {limit}": floor / own * 100, "us torch": other * 1e6, "error": error}
    return Row(name, measures)


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def summary(parts: Mapping[str, Sequence[Row]]) -> Iterator[str]:
    """A line for each goal, and for each model that transformers' continuous batching served beside us."""
    for part, rows in parts.items():
        for row in rows:
            for unit, goal in row.goals.items():
                verdict = "reached" if row.reached(unit) else "missed"
                yield f"{verdict}: {part}, {row.name}: {number(row.measures[unit])} {unit}, goal {number(goal)}"
    for model, rows in parts.items():
        others = {row.name: row for row in parts.get(f"{model} beside", ())}  # of its rounds the last
        for row in rows:
            if row.name in others:
                times = row.measures["tok/s"] / others[row.name].measures["tok/s"]
                yield f"{model}, {row.name}: {number(times)} times transformers' continuous batching"
