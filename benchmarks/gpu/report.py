"""What a part finds, as a row: its measures by their units; and which goals are reached."""

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
    """A measure that should be so much at the least."""

    part: str
    row: str
    unit: str
    least: float

    def verdict(self, rows: Sequence[Row]) -> str:
        """In a line; `rows` are the part's."""
        found = next((row.measures[self.unit] for row in rows if row.name == self.row), None)
        word = "not measured" if found is None else "reached" if found >= self.least else "missed"
        value = "" if found is None else f"{number(found)} {self.unit}, "
        return f"{word:12}  {self.part}, {self.row}: {value}goal {number(self.least)} {self.unit}"


def beside(name: str, own: float, other: float, floor: float, limit: str, error: float) -> Row:
    """A kernel beside torch's, in seconds.

    floor: what the work takes at the device's limit; error: the largest difference from torch's.
    """
    measures = {"us": own * 1e6, f"% of {limit}": floor / own * 100, "us torch": other * 1e6, "error": error}
    return Row(name, measures)


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def compared(parts: Mapping[str, Sequence[Row]]) -> Iterator[str]:
    """A line for each model that transformers' continuous batching served beside us."""
    for model, rows in parts.items():
        others = {row.name: row for row in parts.get(f"{model} beside", ())}  # of its rounds the last
        for row in rows:
            if row.name in others:
                times = row.measures["tok/s"] / others[row.name].measures["tok/s"]
                yield f"{model}, {row.name}: {number(times)} times transformers' continuous batching"
