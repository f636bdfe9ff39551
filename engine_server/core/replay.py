"""The captured parts of steps."""

from collections.abc import Callable
from typing import NamedTuple

from engine_server.modeling.graphs.captured_step import CapturedStep
from engine_server.modeling.graphs.staging import StepShape


class CapturedForward(NamedTuple):
    """The hidden states of one kind of step, captured for some numbers of tokens."""

    step: CapturedStep
    # Returns the shape to which a step must be padded for a captured number of tokens; None: steps keep their own.
    shape: Callable[[int], StepShape] | None


class Graphs(NamedTuple):
    """The captured parts of steps; the head's draw is captured by the head."""

    decodes: CapturedForward
    # Steps with prompts; None: they are eager.
    mixed: CapturedForward | None
    logits: CapturedStep


class Replay(NamedTuple):
    """The captured parts that compute a step."""

    graphs: Graphs
    forward: CapturedStep
    # The captured number of tokens.
    size: int
    shape: StepShape | None
