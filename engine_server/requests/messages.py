"""Messages between front end and core: msgspec structs, which cross the process boundary as msgpack."""

from typing import TYPE_CHECKING, Any, Self

import msgspec

from engine_server.requests.pooling_params import PoolingParams
from engine_server.requests.sampling_params import SamplingParams
from engine_server.requests.scheduler_stats import FinishReason, SchedulerStats

if TYPE_CHECKING:
    from torch import Tensor


class Message(msgspec.Struct, array_like=True, tag=True, omit_defaults=True):
    """A message with a tag, so that one decoder serves every kind."""


class RawTensor(msgspec.Struct, array_like=True):
    """A tensor of at least one dimension, as its bytes."""

    # torch's name without "torch.".
    dtype: str
    shape: list[int]
    data: bytes

    @classmethod
    def of(cls, tensor: "Tensor") -> Self:
        import torch  # takes seconds, which only those who have a tensor pay

        data = tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()
        return cls(str(tensor.dtype).removeprefix("torch."), list(tensor.shape), data)

    def tensor(self) -> "Tensor":
        import torch

        empty = torch.empty(self.shape, dtype=getattr(torch, self.dtype))
        return (
            torch.frombuffer(bytearray(self.data), dtype=empty.dtype).view(self.shape) if self.data else empty
        )


# front end -> core


class AddRequest(Message):
    """A checked request for one completion. `params.seed` is set."""

    # Unique among all admissions; the caller's id never reaches the core.
    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    # Most output tokens, as many as fit the context included.
    max_tokens: int
    # Seconds of the system's monotonic clock.
    arrival: float
    # The number among the completions of one prompt, from 0.
    child: int = 0
    # The lower runs first.
    priority: int = 0
    # On the clock of `arrival`.
    deadline: float | None = None
    # Only requests with the same salt share cached blocks.
    cache_salt: str | None = None
    # Tokens at the end of `prompt_token_ids` that are output already.
    num_resumed: int = 0
    # For a pooling model, with every default resolved; `params` has no meaning then.
    pooling: PoolingParams | None = None
    # For each token the number of its text, where a prompt has two.
    token_type_ids: list[int] | None = None
    # [tokens, hidden], in place of the prompt's tokens.
    prompt_embeds: RawTensor | None = None


class AbortRequests(Message):
    """End requests and free their blocks. Unknown ids are ignored."""

    request_ids: list[str]


class Call(Message):
    """Run an operation of the core by its name."""

    call_id: int
    method: str
    args: list[Any] = []


FrontEndMessage = AddRequest | AbortRequests | Call


# core -> front end


class TokenLogprobsArray(msgspec.Struct, array_like=True):
    """One token's log-probabilities: the sampled token first, then the likeliest, with their ranks."""

    token_ids: list[int]
    logprobs: list[float]
    ranks: list[int]


class RequestStep(msgspec.Struct, array_like=True, omit_defaults=True):
    """One request's part of a step's results."""

    request_id: str
    new_token_ids: list[int]
    # For each new token, if the request asked for them.
    logprobs: list[TokenLogprobsArray] | None = None
    finish_reason: FinishReason | None = None
    # The stop token that ended the request.
    stop_reason: int | None = None
    # Time of the request's first step, on the monotonic clock; sent with the first token.
    scheduled: float | None = None
    # Prompt tokens that were found in the prefix cache; sent with the first token.
    num_cached_tokens: int = 0
    # Those of the second prompt token and all later ones; sent with the first token.
    prompt_logprobs: list[TokenLogprobsArray] | None = None
    # The cause, if the finish reason is "error".
    error: str | None = None
    # A pooling model's result: float32, [dimensions], [labels] or [tokens, hidden].
    pooled: RawTensor | None = None


class StepOutputs(Message):
    """The results of one step, and the state that it left."""

    steps: list[RequestStep]
    stats: SchedulerStats


class CallResult(Message):
    """The result or the error of a call."""

    call_id: int
    value: Any = None
    error: str | None = None

    def result(self) -> Any:
        """Return the value. Raises RuntimeError with the operation's message if it failed."""
        if self.error is not None:
            raise RuntimeError(self.error)
        return self.value


class Phase(Message):
    """A part of the start that has ended, and how long it took."""

    name: str
    seconds: float


class Ready(Message):
    """The core takes requests from now on."""

    num_blocks: int


CoreMessage = StepOutputs | CallResult | Phase | Ready
