"""What a step gives: a result for each request that samples, and a report of the whole."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from engine_server.requests.messages import RawTensor, TokenLogprobsArray


class StepResult(msgspec.Struct, frozen=True, gc=False):
    """At least one token, a vector, or an error that ends this request alone."""

    tokens: Sequence[int] = ()
    # One for each token, if the request asked for log-probabilities.
    logprobs: list[TokenLogprobsArray] | None = None
    # float32: [dimensions] of an embedding, [labels] of a classifier, or [tokens, hidden] of the task encode.
    vector: RawTensor | None = None
    error: str | None = None


class StepReport(NamedTuple):
    """A step whose results were collected. Of no step, all is 0."""

    num_tokens: int = 0
    # The model ran from a capture.
    replayed: bool = False
    # By a GPU's own clock; 0 where there is none.
    device_seconds: float = 0.0
