"""The result of one step for one request."""

from collections.abc import Sequence

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
