"""Events of a generation, in the order in which they happen; every API renders the same ones."""

import msgspec

from engine_server.requests.logprobs import SampleLogprobs


class Finish(msgspec.Struct, frozen=True):
    """The end of a choice."""

    reason: str
    # The stop string or the stop token's id that ended it.
    stop: int | str | None


class ChoiceDelta(msgspec.Struct, frozen=True):
    """New text of a choice, or its end, or both; the whole text where the answer is not streamed."""

    choice: int
    text: str
    # One entry for each new token; None unless the request asks for log-probabilities.
    logprobs: SampleLogprobs | None
    # None while the choice goes on.
    finish: Finish | None


class GenerationFinished(msgspec.Struct, frozen=True):
    """The end of the last choice; no event follows."""

    prompt_tokens: int
    completion_tokens: int


GenerationEvent = ChoiceDelta | GenerationFinished
