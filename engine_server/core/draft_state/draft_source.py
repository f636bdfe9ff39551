"""The hidden states of the target from which a draft head continues a request."""

from typing import NamedTuple


class DraftSource(NamedTuple):
    """A request's tokens in a step of the target. The device keeps their hidden states until the next step."""

    # Number of the step, as the drafter counts them.
    step: int
    # Number of the request's tokens before them.
    start: int
    # Index of the first one's state among those of the step.
    first: int
