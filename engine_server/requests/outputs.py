"""What a caller gets back."""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import nan
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from torch import Tensor


class Logprob(NamedTuple):
    """One token's log-probability under the model, before temperature and filters; `rank` 1 is the likeliest."""

    logprob: float
    rank: int
    decoded_token: str


TokenLogprobs = dict[int, Logprob]


@dataclass(slots=True)
class CompletionOutput:
    """One completion. `logprobs` holds for each token the sampled token first, then the likeliest ones; {} if resumed.

    finish_reason: None while it runs; "stop" (end of sequence, stop token or stop string), "length", "abort",
    "timeout" or "error".
    stop_reason: the stop string or stop token id that ended it, None for the model's own end of sequence; what
    failed, after an error.
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
    num_cached_tokens: int | None = None  # prompt tokens that were cached; known with the first token


@dataclass(slots=True)
class PoolingOutput:
    data: "Tensor"  # each token's last hidden state: float32 [tokens, hidden]


@dataclass(slots=True)
class EmbeddingOutput:
    embedding: list[float]


@dataclass(slots=True)
class ClassificationOutput:
    probs: list[float]  # a score for each label, in the order of their ids


@dataclass(slots=True)
class ScoringOutput:
    score: float


Pooled = TypeVar("Pooled", PoolingOutput, EmbeddingOutput, ClassificationOutput, ScoringOutput)


@dataclass(slots=True)
class PoolingRequestOutput(Generic[Pooled]):
    """A pooling request's one output.

    finish_reason: "stop"; with "abort", "timeout" or "error" `outputs` holds no number, or NaN.
    stop_reason: the error in words.
    """

    request_id: str
    outputs: Pooled
    prompt_token_ids: list[int]
    finished: bool = True
    finish_reason: str | None = "stop"
    stop_reason: int | str | None = None


class EmbeddingRequestOutput(PoolingRequestOutput[EmbeddingOutput]): ...


class ClassificationRequestOutput(PoolingRequestOutput[ClassificationOutput]): ...


class ScoringRequestOutput(PoolingRequestOutput[ScoringOutput]): ...


Output = RequestOutput | PoolingRequestOutput[Any]

# By task: the output's class, and what makes its `outputs` of the numbers.
POOLED: dict[str, tuple[type[PoolingRequestOutput[Any]], Callable[["Tensor"], Any]]] = {
    "encode": (PoolingRequestOutput, PoolingOutput),
    "embed": (EmbeddingRequestOutput, lambda vector: EmbeddingOutput(vector.tolist())),
    "classify": (ClassificationRequestOutput, lambda scores: ClassificationOutput(scores.tolist())),
    "score": (ScoringRequestOutput, lambda scores: ScoringOutput(scores[0].item() if len(scores) else nan)),
}
