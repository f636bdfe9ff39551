"""What the front end and the core say to each other: msgspec structs, so that they cross a process as msgpack."""

from typing import TYPE_CHECKING, Any, Self

import msgspec

from engine_server.requests.pooling_params import PoolingParams
from engine_server.requests.sampling_params import SamplingParams
from engine_server.requests.scheduler_stats import FinishReason, SchedulerStats

if TYPE_CHECKING:
    from torch import Tensor


class Message(msgspec.Struct, array_like=True, tag=True, omit_defaults=True):
    """Tagged, so that one decoder serves every kind."""


class RawTensor(msgspec.Struct, array_like=True):
    """A tensor of at least one dimension, as its bytes."""

    dtype: str  # as torch names it
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
    """A checked request. `params.seed` is set; `arrival` is in seconds of the system's monotonic clock."""

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    max_tokens: int  # output tokens at most, the context's end included
    arrival: float
    child: int = 0  # its number among the n completions of one prompt
    priority: int = 0  # the lower runs first
    deadline: float | None = None  # on the same clock
    cache_salt: str | None = None  # only requests with the same share cached blocks
    num_resumed: int = 0  # tokens at the end of `prompt_token_ids` that are output already
    pooling: PoolingParams | None = (
        None  # of a pooling model, every default resolved; `params` says nothing then
    )
    token_type_ids: list[int] | None = None  # for each token the number of its text, where a prompt has two
    prompt_embeds: RawTensor | None = None  # [tokens, hidden], which stand for the prompt's tokens


class AbortRequests(Message):
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
    """What one step did for one request."""

    request_id: str
    new_token_ids: list[int]
    logprobs: list[TokenLogprobsArray] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None
    scheduled: float | None = None  # when it first ran; told with the first token
    num_cached_tokens: int = 0  # of the prompt; told with the first token
    prompt_logprobs: list[TokenLogprobsArray] | None = (
        None  # of the second prompt token on; with the first token
    )
    error: str | None = None  # why it ended, where the reason is error
    pooled: RawTensor | None = (
        None  # a pooling model's result: float32, [dimensions], [labels] or [tokens, hidden]
    )


class StepOutputs(Message):
    """Everything that one step gave."""

    steps: list[RequestStep]
    stats: SchedulerStats


class Returned(Message):
    """What a call gave."""

    call_id: int
    value: Any = None
    error: str | None = None

    def result(self) -> Any:
        """Raises RuntimeError with the operation's words where it failed."""
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


CoreMessage = StepOutputs | Returned | Phase | Ready
