"""What a caller gets back."""

from dataclasses import dataclass, field
from typing import NamedTuple


class Logprob(NamedTuple):
    """One token's log-probability under the model, before temperature and filters; `rank` 1 is the likeliest."""

    logprob: float
    rank: int
    decoded_token: str


TokenLogprobs = dict[int, Logprob]


@dataclass(slots=True)
class CompletionOutput:
    """One completion. `logprobs` holds for each token the sampled token first, then the likeliest ones.

    finish_reason: None while it runs; "stop" (end of sequence, stop token or stop string), "length" or "abort".
    stop_reason: the stop string or stop token id that ended it, None for the model's own end of sequence.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestOutput:
    """A request's state as its output kind shows it."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput] = field(default_factory=list)
    finished: bool = False
    prompt_logprobs: list[TokenLogprobs | None] | None = None
