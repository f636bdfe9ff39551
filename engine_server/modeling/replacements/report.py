"""Reports of what the passes over a model replaced."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class PassReport:
    """The result of one pass."""

    name: str
    # Numbers of modules by original and replacement: "LlamaRMSNorm -> FusedRMSNorm".
    replaced: Mapping[str, int]
    # Numbers of modules that the pass examined and left, by their class and the reason.
    left: Mapping[str, int]
    # The classes, or functions, for which a choice was applied.
    applied: frozenset[object] = frozenset()

    def __str__(self) -> str:
        replaced = ", ".join(f"{count} {what}" for what, count in sorted(self.replaced.items()))
        left = ", ".join(f"{count} {what}" for what, count in sorted(self.left.items()))
        return f"{self.name}: {replaced or 'nothing replaced'}" + (f"; left: {left}" if left else "")


@dataclass
class Tally:
    """The report of a pass that is running."""

    name: str
    _replaced: Counter[str] = field(default_factory=Counter)
    _left: Counter[str] = field(default_factory=Counter)
    _applied: set[object] = field(default_factory=set)

    def replaced(self, original: type, replacement: str, *chosen: object) -> None:
        """Count a module that was replaced. chosen: the keys of the choices for it."""
        self._replaced[f"{name_of(original)} -> {replacement}"] += 1
        self._applied.update(chosen)

    def left(self, original: type, reason: str) -> None:
        """Count a module that was left unchanged."""
        self._left[f"{name_of(original)} ({reason})"] += 1

    def report(self) -> PassReport:
        """Return the report of the finished pass."""
        return PassReport(self.name, dict(self._replaced), dict(self._left), frozenset(self._applied))


def name_of(kind: type) -> str:
    """Return the name of a class, with the prefix nn for torch's."""
    return f"nn.{kind.__name__}" if kind.__module__.startswith("torch.nn.") else kind.__name__
