"""Which path our engines' steps took: recorded programs, or eager operations, which are slower."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

# Of all steps of a side.
LEAST_RECORDED = 0.95


class Run(NamedTuple):
    """Reads the kernels and steps of one of our engines."""

    # The line that names instruction level, threads and attention.
    kernels: Callable[[], str]
    # The number of steps so far, `graph` (recorded) and `eager`.
    steps: Callable[[], Mapping[str, float]]

    def report(self) -> dict[str, Any]:
        """Return kernels and the recorded share of steps. Raises SystemExit if too few were recorded."""
        steps = self.steps()
        share = steps["graph"] / sum(steps.values())
        if share < LEAST_RECORDED:
            raise SystemExit(f"only {share:.0%} of the steps were recorded: {steps}. Nothing is saved")
        return {"kernels": self.kernels(), "recorded_steps": round(share, 4)}
