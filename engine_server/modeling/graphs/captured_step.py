"""The interface of captured steps, and the part of a step to capture."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


class CapturedStep(Protocol):
    """One part of a step, captured for some numbers of tokens, its size."""

    @property
    def bytes(self) -> int:
        """The memory that the part takes besides the buffers that all parts share."""

    def size_for(self, count: int) -> int | None:
        """Return the smallest captured size with room for `count` tokens, or None."""

    def replay(self, size: int) -> None:
        """Compute what the captured part computes for a captured size."""


@dataclass(frozen=True)
class StepPart:
    """One part of a step, which reads and writes buffers at fixed addresses that all sizes share."""

    # What the part computes, for the log.
    name: str
    # Stages a step that `run` can compute, of a number of tokens.
    prepare: Callable[[int], None]
    # Computes the part for a number of tokens.
    run: Callable[[int], None]
    # The context in which the captured part runs for a number of decodes.
    context: Callable[[int], AbstractContextManager[None]]
    # The largest size.
    most: int
    # The largest number of decodes that `run` takes.
    most_decodes: int
    # The buffer that the part writes, [most, ...].
    output: Tensor
    # Returns the tensors that the latest step has read besides the buffers.
    step_tensors: Callable[[], list[Tensor]]
    # Zeroes what `run` has kept for later steps.
    erase: Callable[[], None]
    # The smallest size to capture, where each is captured apart.
    least: int = 1
