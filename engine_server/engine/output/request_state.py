"""State of a request in the front end, from its admission to its last output."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from engine_server.engine.output.detokenizer import Detokenizer
from engine_server.engine.output.logprobs import LogprobsConverter
from engine_server.requests.logprobs import PromptLogprobs, SampleLogprobs
from engine_server.requests.messages import RawTensor, RequestStep, TokenLogprobsArray
from engine_server.requests.outputs import POOLED, CompletionOutput, Output, RequestMetrics, RequestOutput
from engine_server.requests.pictures import Picture
from engine_server.requests.pooling_params import PoolingParams
from engine_server.requests.sampling_params import RequestOutputKind, SamplingParams
from engine_server.requests.scheduler_stats import FinishReason
from engine_server.telemetry.stats import FinishedRequest

# Takes a completion's next tokens, and the text that became visible with them, in place of an output, and returns True;
# False: they are due as an output. It raises nothing.
TokenSink = Callable[[list[int], str], bool]


@dataclass(slots=True)
class Completion:
    """One completion of a request; the core handles each completion as a separate request."""

    # Unique among all admissions, unlike the caller's id.
    core_id: str
    # Index among the request's completions, from 0.
    index: int
    detokenizer: Detokenizer | None = None
    token_ids: list[int] = field(default_factory=list)
    # Of a request that gets deltas, those that no output has contained yet.
    logprobs: SampleLogprobs = field(default_factory=list)
    cumulative_logprob: float = 0.0
    # Visible text; not kept for a request that gets deltas.
    text: str = ""
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    # Times of the monotonic clock, 0 before the event.
    scheduled: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0
    num_cached_tokens: int = 0
    # True if there are tokens that no output has contained yet.
    changed: bool = False
    # Number of tokens that outputs have contained.
    num_reported: int = 0
    # Number of tokens whose log-probabilities were dropped.
    num_dropped: int = 0
    # The text of each resumed token, until an output contains it.
    resumed_text: list[str] = field(default_factory=list)
    # Set when the completion ends.
    stats: FinishedRequest | None = None

    def take_text(self) -> str:
        return self.detokenizer.take() if self.detokenizer else ""


@dataclass(slots=True, kw_only=True)
class RequestState(ABC):
    """A request in flight. `params` are those of the core's request, with every default resolved."""

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    arrival: float
    completions: list[Completion]
    trace_headers: Mapping[str, str] | None = None
    # Those of the prompt, by the digests that the core has.
    pictures: Mapping[str, Picture] = field(default_factory=dict)
    # Whose turn it is when one of them is processed again; None: nobody's.
    caller: str | None = None
    # Prompt tokens whose keys and values were cached; known with the first token.
    num_cached_tokens: int | None = None
    metrics: RequestMetrics = field(default_factory=RequestMetrics)

    def divert(self, sink: TokenSink) -> None:  # noqa: B027  (optional: other outputs than text have no sink)
        """Let `sink` take the steps that follow, if outputs say no more than a completion's tokens and text."""

    @property
    def picture_bytes(self) -> int:
        return sum(len(picture.data) for picture in self.pictures.values())

    @property
    def finished(self) -> bool:
        return None not in [completion.finish_reason for completion in self.completions]

    @abstractmethod
    def append(self, completion: Completion, step: RequestStep) -> bool:
        """Add a step's result to a completion; return False if the sink has taken it, so that no output is due.

        May raise, which ends the request.
        """

    @abstractmethod
    def output(self) -> Output | None:
        """Return the output that is due by the request's output kind, or None. May raise, which ends the request."""

    @abstractmethod
    def last_output(self) -> Output:
        """Return an output with the finish reasons alone, after `append` or `output` raised."""

    def abort(self) -> list[str]:
        """End every completion that has not ended; return their ids in the core."""
        unfinished = [completion for completion in self.completions if not completion.finish_reason]
        for completion in unfinished:
            completion.finish_reason, completion.changed = "abort", True
        return [completion.core_id for completion in unfinished]

    def fail(self, error: str) -> list[str]:
        """End every completion whose end is not recorded yet; return their ids in the core."""
        open_ones = [completion for completion in self.completions if completion.stats is None]
        for completion in open_ones:
            completion.finish_reason, completion.stop_reason, completion.changed = "error", error, True
        return [completion.core_id for completion in open_ones]


@dataclass(slots=True, kw_only=True)
class GenerationState(RequestState):
    """A request for text."""

    prompt: str | None
    converter: LogprobsConverter
    # Those that have arrived; None if they are not requested, or were reported.
    prompt_logprobs: PromptLogprobs | None = None
    # Indexes of the prompt's tokens that pictures take the places of, whose log-probabilities say nothing.
    placeholders: Collection[int] = ()
    # Takes steps before they become an output; None after the first that it refuses.
    sink: TokenSink | None = None

    def append(self, completion: Completion, step: RequestStep) -> bool:
        if self.sink is not None and step.finish_reason is None:
            return self._pass_on(self.sink, completion, step.new_token_ids)
        completion.changed = True
        completion.token_ids += step.new_token_ids
        completion.finish_reason, completion.stop_reason = step.finish_reason, step.error or step.stop_reason
        if step.logprobs:
            begins = completion.detokenizer is not None and completion.detokenizer.begins
            for token in step.logprobs:
                completion.logprobs.append(self.converter.convert(token, begins))
                completion.cumulative_logprob += token.logprobs[0]
                begins = False
        if completion.detokenizer is not None:
            # An end-of-sequence or stop token is not part of the text.
            ended_by_token = step.finish_reason == "stop" and not self.params.include_stop_str_in_output
            shown = step.new_token_ids[:-1] if ended_by_token else step.new_token_ids
            if stop := completion.detokenizer.append(shown, bool(step.finish_reason)):
                completion.finish_reason, completion.stop_reason = "stop", stop
        return True

    def divert(self, sink: TokenSink) -> None:
        params, (completion, *others) = self.params, self.completions
        if (
            not others
            and completion.detokenizer is not None
            and params.output_kind == RequestOutputKind.DELTA
            and params.logprobs is None
            and not params.stop_strings
        ):
            self.sink = sink

    def _pass_on(self, sink: TokenSink, completion: Completion, token_ids: list[int]) -> bool:
        """Offer tokens to the sink; return True if they are left for an output."""
        assert completion.detokenizer is not None
        completion.token_ids += token_ids
        text = completion.detokenizer.decode(token_ids)
        if sink(token_ids, text):
            completion.num_reported = len(completion.token_ids)
            return False
        self.sink, completion.changed = None, True
        completion.detokenizer.keep(text)
        return True

    def add_prompt_logprobs(self, tokens: Sequence[TokenLogprobsArray]) -> None:
        """Convert the log-probabilities of the prompt's next tokens."""
        assert self.prompt_logprobs is not None
        for token in tokens:
            inside = len(self.prompt_logprobs) in self.placeholders
            self.prompt_logprobs.append(None if inside else self.converter.convert(token))

    def output(self) -> RequestOutput | None:
        params, completions = self.params, self.completions
        chooses = len(completions) > params.n
        finished = self.finished
        if not finished and (chooses or params.output_kind == RequestOutputKind.FINAL_ONLY):
            return None
        if chooses:
            completions = sorted(completions, key=lambda one: -one.cumulative_logprob)[: params.n]
            for rank, completion in enumerate(completions):
                completion.index = rank
        output = self._output([], finished)
        if params.output_kind == RequestOutputKind.DELTA:
            if output.prompt_logprobs is not None:
                self.prompt_logprobs = None
            completions = [completion for completion in completions if completion.changed]
            output.outputs = [self._delta(completion) for completion in completions]
        else:
            output.outputs = [self._whole(completion) for completion in completions]
        return output

    def last_output(self) -> RequestOutput:
        return self._output(
            [
                CompletionOutput(
                    one.index, "", [], finish_reason=one.finish_reason, stop_reason=one.stop_reason
                )
                for one in self.completions[: self.params.n]
            ],
            self.finished,
        )

    def _output(self, completions: list[CompletionOutput], finished: bool) -> RequestOutput:
        logprobs = self.prompt_logprobs
        if logprobs is not None and len(logprobs) < len(self.prompt_token_ids):
            logprobs = None  # the request ends before its first token
        return RequestOutput(
            self.request_id, self.prompt, self.prompt_token_ids, logprobs, completions, finished,
            self.metrics, self.num_cached_tokens,
        )  # fmt: skip

    def _delta(self, completion: Completion) -> CompletionOutput:
        """Return the part of a completion that is not reported yet, and count it as reported."""
        text, start = completion.take_text(), completion.num_reported
        completion.num_reported, completion.changed = len(completion.token_ids), False
        output = self._completion_output(completion, text, start)
        if output.logprobs:  # of which a stream can have millions
            completion.num_dropped += len(completion.logprobs)
            completion.logprobs = type(completion.logprobs)()
        return output

    def _whole(self, completion: Completion) -> CompletionOutput:
        completion.text += completion.take_text()
        return self._completion_output(completion, completion.text, 0)

    def _completion_output(self, completion: Completion, text: str, start: int) -> CompletionOutput:
        wanted = self.params.logprobs is not None
        resumed_text, completion.resumed_text = completion.resumed_text, []
        return CompletionOutput(
            index=completion.index,
            text=text,
            token_ids=completion.token_ids[start:],
            cumulative_logprob=completion.cumulative_logprob if wanted else None,
            logprobs=completion.logprobs[start - completion.num_dropped :] if wanted else None,
            finish_reason=completion.finish_reason,
            stop_reason=completion.stop_reason,
            resumed_text=resumed_text,
        )


@dataclass(slots=True, kw_only=True)
class PoolingState(RequestState):
    """A request for a vector or scores."""

    pooling: PoolingParams
    pooled: RawTensor | None = None

    def append(self, completion: Completion, step: RequestStep) -> bool:
        completion.changed = True
        completion.finish_reason, completion.stop_reason = step.finish_reason, step.error or step.stop_reason
        self.pooled = step.pooled
        return True

    def output(self) -> Output | None:
        return self._output(self.pooled or NO_NUMBERS) if self.finished else None

    def last_output(self) -> Output:
        return self._output(NO_NUMBERS)

    def _output(self, pooled: RawTensor) -> Output:
        kind, outputs = POOLED[self.pooling.task or ""]
        (completion,) = self.completions
        return kind(
            self.request_id,
            outputs(pooled.tensor()),
            self.prompt_token_ids,
            True,
            completion.finish_reason,
            completion.stop_reason,
        )


NO_NUMBERS = RawTensor("float32", [0], memoryview(b""))
