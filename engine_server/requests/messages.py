"""Messages between front end and core: msgspec structs, which cross the process boundary as msgpack."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Self

import msgspec

from engine_server.config.start_facts import StartFacts
from engine_server.requests.adapters import LoRARequest, PromptAdapterRequest
from engine_server.requests.errors import OperationRefusedError
from engine_server.requests.pooling_params import PoolingParams
from engine_server.requests.sampling_params import SamplingParams
from engine_server.requests.scheduler_stats import FinishReason, SchedulerStats
from engine_server.requests.token_bytes import TOKEN_BYTES, unpack

if TYPE_CHECKING:
    from torch import Tensor


# Of a prompt in one message: a front end converts them in about 5 ms.
MOST_LOGPROBS = 4096


class Message(msgspec.Struct, array_like=True, tag=True, omit_defaults=True):
    """A message with a tag, so that one decoder serves every kind."""

    def detach(self) -> "tuple[Message, list[memoryview]]":
        """Return what of the message is encoded, and the bytes that are sent behind it without being copied."""
        return self, []

    def attach(self, behind: "list[memoryview]") -> None:
        """Take the bytes that came behind the decoded message. Raises ValueError for others than `detach` gives."""
        if behind:
            raise ValueError(f"{len(behind)} frames came behind a {type(self).__name__}, which has none")


class RawTensor(msgspec.Struct, array_like=True):
    """A tensor of at least one dimension, as its bytes."""

    # torch's name without "torch.".
    dtype: str
    shape: list[int]
    # Decoding does not copy them: they keep their message.
    data: memoryview

    @classmethod
    def of(cls, tensor: "Tensor") -> Self:
        import torch  # takes seconds, and is needed for tensors only

        data = tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()
        return cls(str(tensor.dtype).removeprefix("torch."), list(tensor.shape), memoryview(data))

    def tensor(self) -> "Tensor":
        import torch

        empty = torch.empty(self.shape, dtype=getattr(torch, self.dtype))
        return (
            torch.frombuffer(bytearray(self.data), dtype=empty.dtype).view(self.shape) if self.data else empty
        )


# front end -> core


class RawSpan(msgspec.Struct, array_like=True):
    """Embeddings in place of those of consecutive tokens of a prompt."""

    # Index of the first of the tokens in `packed_token_ids`.
    start: int
    # [tokens, hidden].
    rows: RawTensor
    # Identifies dtype, shape and content of the rows.
    digest: str


class PictureSpan(msgspec.Struct, array_like=True):
    """Consecutive placeholders of a prompt, and the rows of a picture that take their places."""

    # Index of the first of the placeholders in `packed_token_ids`.
    start: int
    length: int
    # Of the picture, for requests that may share what was computed of it.
    digest: str
    # Index of the first of the rows.
    first: int


# What a model's encoder takes for a picture, by name.
EncoderInputs = dict[str, RawTensor]


class AddRequest(Message):
    """A checked prompt, and a request for each of its completions. `params.seed` is set."""

    # One for each completion, unique among all admissions; the caller's id is never sent to the core.
    request_ids: list[str]
    # See `token_bytes`.
    packed_token_ids: bytes
    params: SamplingParams
    # Maximum number of output tokens, already limited to the context.
    max_tokens: int
    # Seconds of the system's monotonic clock.
    arrival: float
    # Lower priorities run first.
    priority: int = 0
    # On the clock of `arrival`.
    deadline: float | None = None
    # Only requests with the same salt share cached blocks.
    cache_salt: str | None = None
    # Number of tokens at the end of `packed_token_ids` that are output already.
    num_resumed: int = 0
    # Parameters of a pooling request, with every default resolved; `params` is unused then.
    pooling: PoolingParams | None = None
    # Index of the text of each token, for a prompt of two texts.
    token_type_ids: list[int] | None = None
    # Embeddings in place of those of its tokens, in order.
    spans: list[RawSpan] = []
    lora: LoRARequest | None = None
    # Its virtual tokens come before `packed_token_ids`.
    prompt_adapter: PromptAdapterRequest | None = None
    # The caller's; only requests with the same scope and the same salt share cached blocks.
    cache_scope: str | None = None
    # In order.
    picture_spans: list[PictureSpan] = []

    @property
    def num_tokens(self) -> int:
        """Number of tokens of the prompt, and of those that are output already."""
        return len(self.packed_token_ids) // TOKEN_BYTES

    def token_ids(self) -> list[int]:
        """Return the tokens of the prompt, and those that are output already, as a new list."""
        return unpack(self.packed_token_ids)


class PictureInputs(Message):
    """The answer to a PictureWanted."""

    request_id: str
    digest: str
    # None: there are none, for the reason in `error`.
    inputs: EncoderInputs | None = None
    error: str | None = None

    def detach(self) -> tuple[Message, list[memoryview]]:
        if self.inputs is None:
            return self, []
        empty = {name: RawTensor(one.dtype, one.shape, memoryview(b"")) for name, one in self.inputs.items()}
        return msgspec.structs.replace(self, inputs=empty), [one.data for one in self.inputs.values()]

    def attach(self, behind: list[memoryview]) -> None:
        for tensor, data in zip((self.inputs or {}).values(), behind, strict=True):
            tensor.data = data


class AbortRequests(Message):
    """End requests and free their blocks. Unknown ids are ignored."""

    request_ids: list[str]


class Call(Message):
    """Run an operation of the core by its name."""

    call_id: int
    method: str
    args: list[Any] = []


class Vocabulary(Message):
    """The text of each token, for grammars, and the tokens that end an answer."""

    # By token id, for each of the model's logits: the bytes that a token adds to the text; of a special token its name.
    tokens: list[bytes]
    special_token_ids: list[int]
    # The tokens that end an answer, with grammars and without.
    eos_token_ids: list[int]


FrontEndMessage = AddRequest | PictureInputs | AbortRequests | Call | Vocabulary


# core -> front end


class TokenLogprobsArray(msgspec.Struct, array_like=True):
    """One token's log-probabilities: the sampled token first, then the likeliest, with their ranks."""

    token_ids: list[int]
    logprobs: list[float]
    ranks: list[int]


class RequestStep(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    """One request's part of a step's results."""

    request_id: str
    new_token_ids: list[int]
    # One for each new token, if requested.
    logprobs: list[TokenLogprobsArray] | None = None
    finish_reason: FinishReason | None = None
    # The stop token that ended the request.
    stop_reason: int | None = None
    # Time of the request's first step, on the monotonic clock; sent with the first token.
    scheduled: float | None = None
    # Prompt tokens that were found in the prefix cache; sent with the first token.
    num_cached_tokens: int = 0
    # The cause, if the finish reason is "error".
    error: str | None = None
    # A pooling model's result: float32, [dimensions], [labels] or [tokens, hidden].
    pooled: RawTensor | None = None


class PromptLogprobsPart(Message):
    """Log-probabilities of the next tokens of a prompt, the second one first. All are sent before the first token."""

    request_id: str
    tokens: list[TokenLogprobsArray]

    @classmethod
    def split(cls, request_id: str, tokens: list[TokenLogprobsArray]) -> Iterator[Self]:
        """Yield a prompt's log-probabilities in parts of at most MOST_LOGPROBS, but at least one token."""
        size = max(1, MOST_LOGPROBS // len(tokens[0].token_ids)) if tokens else 1
        for start in range(0, len(tokens), size):
            yield cls(request_id, tokens[start : start + size])


class PictureWanted(Message):
    """A picture of a request, of which the core needs the encoder's inputs."""

    # The core's.
    request_id: str
    digest: str


class StepOutputs(Message):
    """The results of one step, and the state after it."""

    steps: list[RequestStep]
    stats: SchedulerStats


class CallResult(Message):
    """The result or the error of a call."""

    call_id: int
    value: Any = None
    error: str | None = None
    # True if the operation did nothing, for the reason in `error`.
    refused: bool = False

    def result(self) -> Any:
        """Return the value. Raises RuntimeError with the operation's message if it failed or was refused."""
        if self.refused:
            raise OperationRefusedError(self.error)
        if self.error is not None:
            raise RuntimeError(self.error)
        return self.value


class Phase(Message):
    """A completed phase of the start, and its duration."""

    name: str
    seconds: float


class Ready(Message):
    """The report that the core has started and takes requests."""

    facts: StartFacts


CoreMessage = StepOutputs | PromptLogprobsPart | PictureWanted | CallResult | Phase | Ready
