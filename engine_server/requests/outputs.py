"""Outputs of requests."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from math import nan
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from engine_server.requests.logprobs import PromptLogprobs, SampleLogprobs

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class CompletionOutput:
    """One completion.

    logprobs: for each token the sampled token first, then the likeliest ones; {} for a resumed token.
    finish_reason: None while it runs; "stop" (end of sequence, stop token or stop string), "length", "abort",
    "timeout", "error" or "refused".
    stop_reason: the stop string or stop token id that ended it, None for the model's own end of sequence; the
    message of an error or a refusal.
    resumed_text: the text that became visible with each token of `resume_token_ids`; in a request's first output alone.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: SampleLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    resumed_text: list[str] = field(default_factory=list)

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestMetrics:
    """Times and counts of a request, with vLLM's names. It is updated in place until the request ends.

    arrival_time: seconds since the epoch. Names with _ts: seconds of the monotonic clock; 0.0: not yet.
    first_token_latency: seconds from arrival to the first token.
    Of several completions, the first token and the first scheduling count, and the last token of any.
    """

    arrival_time: float = 0.0
    queued_ts: float = 0.0
    scheduled_ts: float = 0.0
    first_token_ts: float = 0.0
    last_token_ts: float = 0.0
    first_token_latency: float = 0.0
    num_generation_tokens: int = 0


@dataclass(slots=True, init=False)
class RequestOutput:
    """A request's state, in the form of its output kind.

    num_cached_tokens: prompt tokens found in the prefix cache; known with the first token.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: PromptLogprobs | None
    outputs: list[CompletionOutput]
    finished: bool
    # Excluded from comparisons, since times differ between runs.
    metrics: RequestMetrics | None = field(compare=False)
    num_cached_tokens: int | None

    def __init__(
        self,
        request_id: str,
        prompt: str | None,
        prompt_token_ids: list[int],
        prompt_logprobs: PromptLogprobs | None = None,
        outputs: list[CompletionOutput] | None = None,
        finished: bool = False,
        metrics: RequestMetrics | None = None,
        num_cached_tokens: int | None = None,
        **unknown: object,
    ) -> None:
        """Make an output. Arguments of other versions of vLLM are ignored with a warning, as vLLM does."""
        if unknown:
            logger.warning("RequestOutput ignores unknown arguments: %s", ", ".join(unknown))
        self.request_id = request_id
        self.prompt = prompt
        self.prompt_token_ids = prompt_token_ids
        self.prompt_logprobs = prompt_logprobs
        self.outputs = [] if outputs is None else outputs
        self.finished = finished
        self.metrics = metrics
        self.num_cached_tokens = num_cached_tokens


@dataclass(slots=True)
class PoolingOutput:
    """The last hidden state of each token: float32 [tokens, hidden]."""

    data: "Tensor"


@dataclass(slots=True)
class EmbeddingOutput:
    """An embedding."""

    embedding: list[float]


@dataclass(slots=True)
class ClassificationOutput:
    """A score for each label, in the order of their ids."""

    probs: list[float]


@dataclass(slots=True)
class ScoringOutput:
    """The score of a pair of texts."""

    score: float


Pooled = TypeVar("Pooled", PoolingOutput, EmbeddingOutput, ClassificationOutput, ScoringOutput)


@dataclass(slots=True)
class PoolingRequestOutput(Generic[Pooled]):
    """The one output of a pooling request.

    finish_reason: "stop"; with "abort", "timeout" or "error" `outputs` holds no number, or NaN.
    stop_reason: the message of an error.
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

# By task: the class of the request's output, and the constructor of its `outputs` from the core's numbers.
POOLED: dict[str, tuple[type[PoolingRequestOutput[Any]], Callable[["Tensor"], Any]]] = {
    "encode": (PoolingRequestOutput, PoolingOutput),
    "embed": (EmbeddingRequestOutput, lambda vector: EmbeddingOutput(vector.tolist())),
    "classify": (ClassificationRequestOutput, lambda scores: ClassificationOutput(scores.tolist())),
    "score": (ScoringRequestOutput, lambda scores: ScoringOutput(scores[0].item() if len(scores) else nan)),
}
