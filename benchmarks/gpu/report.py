"""Rows of measures by unit, and the goals that they reach."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple


class Row(NamedTuple):
    name: str
    measures: dict[str, float]

    def __str__(self) -> str:
        return f"{self.name:34}" + "   ".join(
            f"{number(value)} {unit}" for unit, value in self.measures.items()
        )


class Goal(NamedTuple):
    """A measure that should be at least `least`."""

    part: str
    row: str
    unit: str
    least: float

    def verdict(self, rows: Sequence[Row]) -> str:
        """Return a line that says if `rows`, those of the part, reach the goal."""
        found = next((row.measures[self.unit] for row in rows if row.name == self.row), None)
        word = "not measured" if found is None else "reached" if found >= self.least else "missed"
        value = "" if found is None else f"{number(found)} {self.unit}, "
        return f"{word:12}  {self.part}, {self.row}: {value}goal {number(self.least)} {self.unit}"


def beside(name: str, own: float, other: float, floor: float, limit: str, error: float) -> Row:
    """Return the row of a kernel and its counterpart in torch; times are in seconds.

    floor: the time at the device's limit; error: the largest difference from torch.
    """
    measures = {"us": own * 1e6, f"% of {limit}": floor / own * 100, "us torch": other * 1e6, "error": error}
    return Row(name, measures)


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def compared(parts: Mapping[str, Sequence[Row]]) -> Iterator[str]:
    """Yield a comparison for each model that transformers' continuous batching served too."""
    for model, rows in parts.items():
        others = {row.name: row for row in parts.get(f"{model} beside", ())}  # of its rounds the last
        for row in rows:
            if row.name in others:
                times = row.measures["tok/s"] / others[row.name].measures["tok/s"]
                yield f"{model}, {row.name}: {number(times)} times transformers' continuous batching"
