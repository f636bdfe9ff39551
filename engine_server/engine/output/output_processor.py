"""From the core's steps to what callers see, and to statistics. One per engine, in the caller's process."""

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
from tokenizers import Tokenizer

from engine_server.engine.output.detokenizer import Detokenizer
from engine_server.requests.logprobs import Logprob, TokenLogprobs
from engine_server.requests.messages import AddRequest, RawTensor, RequestStep, TokenLogprobsArray
from engine_server.requests.outputs import (
    POOLED,
    CompletionOutput,
    Output,
    RequestOutput,
)
from engine_server.requests.pooling_params import PoolingParams
from engine_server.requests.sampling_params import RequestOutputKind, SamplingParams
from engine_server.requests.scheduler_stats import FinishReason
from engine_server.telemetry.stats import EndedRequest, FinishedRequest, IterationStats


@dataclass(slots=True)
class Child:
    """One completion of a request, a request of its own to the core: what was made, and how much of that was told."""

    core_id: str
    index: int
    detokenizer: Detokenizer | None
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    cumulative_logprob: float = 0.0
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    scheduled: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0
    num_cached_tokens: int = 0
    fresh: bool = False  # whether there is something to tell
    told_tokens: int = 0
    told_text: int = 0
    pooled: RawTensor | None = None
    stats: FinishedRequest | None = None  # once it has ended

    @property
    def text(self) -> str:
        return self.detokenizer.text if self.detokenizer else ""


@dataclass(slots=True)
class RequestState:
    """A request under way, as its caller gave it."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    params: SamplingParams
    arrival: float
    children: list[Child]
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    pooling: PoolingParams | None = None
    trace_headers: Mapping[str, str] | None = None
    num_cached_tokens: int | None = None

    @property
    def finished(self) -> bool:
        return all(child.finish_reason for child in self.children)


def fan_out(request: AddRequest) -> list[AddRequest]:
    """A request for the core from each completion that is to be made; the first one reports the prompt."""
    params, replace = request.params, msgspec.structs.replace
    if params.num_children == 1:
        return [request]
    if params.num_children > params.n and params.logprobs is None:
        params = replace(params, logprobs=0)  # to choose by
    return [
        replace(
            request,
            request_id=f"{index}_{request.request_id}",
            child=index,
            params=params if index == 0 else replace(params, prompt_logprobs=None),
        )
        for index in range(params.num_children)
    ]


class OutputProcessor:
    """Keeps each request's state from admission to its last output."""

    def __init__(self, tokenizer: Tokenizer | None, eos_token_ids: Iterable[int]) -> None:
        self._tokenizer = tokenizer
        self._eos_token_ids = frozenset(eos_token_ids)
        self._states: dict[str, RequestState] = {}
        self._running: dict[str, tuple[RequestState, Child]] = {}  # by the core's id
        self._ended: dict[str, RequestState] = {}  # by what they resumed, and not told of yet

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._states or request_id in self._running

    def __len__(self) -> int:
        return len(self._states)

    def add(
        self,
        request_id: str,
        requests: Sequence[AddRequest],
        params: SamplingParams,
        prompt: str | None,
        trace_headers: Mapping[str, str] | None = None,
    ) -> bool:
        """Keep a request, whose children are `requests`; False if the tokens that it resumes have ended it."""
        first = requests[0]
        prompt_token_ids = first.prompt_token_ids[: len(first.prompt_token_ids) - first.num_resumed]
        state = RequestState(
            request_id,
            prompt,
            prompt_token_ids,
            params,
            first.arrival,
            [],
            None,
            first.pooling,
            trace_headers,
        )
        self._states[request_id] = state
        for request in requests:
            detokenizer = None
            if params.detokenize and self._tokenizer is not None:
                detokenizer = Detokenizer(self._tokenizer, prompt_token_ids, params)
            child = Child(request.request_id, request.child, detokenizer)
            state.children.append(child)
            self._running[child.core_id] = state, child
            self._replay(child, params, request)
        if state.finished:
            self._ended[request_id] = state
        return not state.finished

    def process(self, steps: Sequence[RequestStep], stats: IterationStats) -> tuple[list[Output], list[str]]:
        """The outputs to give, and the ids of requests that a stop string ended, which the core must abort."""
        now = time.monotonic()
        stopped = []
        touched, self._ended = self._ended, {}
        for step in steps:
            if step.request_id not in self._running:  # aborted while the core was at work
                continue
            state, child = self._running[step.request_id]
            touched[state.request_id] = state
            self._count(state, child, step, now, stats)
            self._append(child, state.params, step)
            if step.prompt_logprobs is not None:
                state.prompt_logprobs = [None, *map(self._decode_logprobs, step.prompt_logprobs)]
            if child.finish_reason and not step.finish_reason:
                stopped.append(child.core_id)
        return self._tell(touched.values(), now, stats), stopped

    def abort(self, request_ids: Iterable[str], stats: IterationStats) -> tuple[list[Output], list[str]]:
        """Forget requests: a last output for each that was known, with everything not told yet, and what the core
        must abort."""
        states = [self._states[name] for name in dict.fromkeys(request_ids) if name in self._states]
        unfinished = [child for state in states for child in state.children if not child.finish_reason]
        for child in unfinished:
            child.finish_reason, child.fresh = "abort", True
        return self._tell(states, time.monotonic(), stats), [child.core_id for child in unfinished]

    def _replay(self, child: Child, params: SamplingParams, request: AddRequest) -> None:
        """Take the tokens that a request resumes, up to the one that ended it."""
        for token_id in request.prompt_token_ids[len(request.prompt_token_ids) - request.num_resumed :]:
            number = len(child.token_ids) + 1
            reason, stop = params.end(token_id, number, request.max_tokens, self._eos_token_ids)
            self._append(child, params, RequestStep(child.core_id, [token_id], None, reason, stop))
            child.logprobs.append({})
            if child.finish_reason:
                break
        child.told_tokens, child.told_text = len(child.token_ids), len(child.text)

    def _append(self, child: Child, params: SamplingParams, step: RequestStep) -> None:
        """Add the step's tokens, and find out whether they end the completion."""
        before = len(child.token_ids)
        child.fresh, child.pooled = True, step.pooled
        child.token_ids += step.new_token_ids
        child.finish_reason, child.stop_reason = step.finish_reason, step.error or step.stop_reason
        for token in step.logprobs or ():
            child.logprobs.append(self._decode_logprobs(token))
            child.cumulative_logprob += token.logprobs[0]
        if child.detokenizer is not None:
            # The token that ends a text is no part of it: an end of sequence, or a stop token.
            ended_by_token = step.finish_reason == "stop" and not params.include_stop_str_in_output
            shown = step.new_token_ids[:-1] if ended_by_token else step.new_token_ids
            if stop := child.detokenizer.append(shown, bool(step.finish_reason), before):
                child.finish_reason, child.stop_reason = "stop", stop

    def _tell(self, states: Collection[RequestState], now: float, stats: IterationStats) -> list[Output]:
        """The outputs that are due of these requests; forget what has ended."""
        outputs = [output for state in states if (output := self._output(state))]
        for state in states:
            for child in state.children:
                if child.finish_reason and self._running.pop(child.core_id, None):
                    child.stats = finished_request(state, child, child.finish_reason, now)
                    stats.finished.append(child.stats)
            if state.finished:
                lives = [child.stats for child in state.children if child.stats]
                stats.ended.append(EndedRequest(state.request_id, state.params, state.trace_headers, lives))
                del self._states[state.request_id]
                self._ended.pop(state.request_id, None)
        return outputs

    def _output(self, state: RequestState) -> Output | None:
        """What the request's output kind shows now, if anything."""
        params, children = state.params, state.children
        chooses = len(children) > params.n
        if not state.finished and (chooses or params.output_kind == RequestOutputKind.FINAL_ONLY):
            return None
        if state.pooling is not None:
            return pooling_output(state, state.pooling, children[0])
        if chooses:
            children = sorted(children, key=lambda child: -child.cumulative_logprob)[: params.n]
            for rank, child in enumerate(children):
                child.index = rank
        output = RequestOutput(
            state.request_id, state.prompt, state.prompt_token_ids, finished=state.finished,
            prompt_logprobs=state.prompt_logprobs, num_cached_tokens=state.num_cached_tokens,
        )  # fmt: skip
        if params.output_kind == RequestOutputKind.DELTA:
            state.prompt_logprobs = None
            children = [child for child in children if child.fresh]
        output.outputs = [completion(child, params) for child in children]
        return output

    def _decode_logprobs(self, token: TokenLogprobsArray) -> TokenLogprobs:
        return {
            token_id: Logprob(logprob, rank, self._tokenizer.decode([token_id]) if self._tokenizer else "")
            for token_id, logprob, rank in zip(token.token_ids, token.logprobs, token.ranks, strict=True)
        }

    def _count(
        self, state: RequestState, child: Child, step: RequestStep, now: float, stats: IterationStats
    ) -> None:
        stats.num_generation_tokens += len(step.new_token_ids)
        if step.scheduled is not None:
            child.scheduled, child.first_token = step.scheduled, now
            child.num_cached_tokens = step.num_cached_tokens
            if state.num_cached_tokens is None:  # of the first child, whose blocks the others share
                state.num_cached_tokens = step.num_cached_tokens
            stats.num_prompt_tokens += len(state.prompt_token_ids)
            stats.num_cached_prompt_tokens += step.num_cached_tokens
            stats.time_to_first_tokens.append(now - state.arrival)
        elif step.new_token_ids:
            stats.inter_token_latencies.append(now - child.last_token)
        child.last_token = now


def pooling_output(state: RequestState, params: PoolingParams, child: Child) -> Output:
    output, outputs = POOLED[params.task or ""]
    numbers = (child.pooled or RawTensor("float32", [0], b"")).tensor()
    return output(
        state.request_id,
        outputs(numbers),
        state.prompt_token_ids,
        True,
        child.finish_reason,
        child.stop_reason,
    )


def completion(child: Child, params: SamplingParams) -> CompletionOutput:
    """All of a completion, or what is new of it; from then on it counts as told."""
    first_token = first_character = 0
    text = child.text
    if params.output_kind == RequestOutputKind.DELTA:
        first_token, first_character = child.told_tokens, child.told_text
    child.told_tokens, child.told_text, child.fresh = len(child.token_ids), len(text), False
    wanted = params.logprobs is not None
    return CompletionOutput(
        index=child.index,
        text=text[first_character:],
        token_ids=child.token_ids[first_token:],
        cumulative_logprob=child.cumulative_logprob if wanted else None,
        logprobs=child.logprobs[first_token:] if wanted else None,
        finish_reason=child.finish_reason,
        stop_reason=child.stop_reason,
    )


def finished_request(state: RequestState, child: Child, reason: FinishReason, now: float) -> FinishedRequest:
    """The times and counts of a completion that has ended."""
    scheduled, first = child.scheduled or now, child.first_token or now
    return FinishedRequest(
        reason=reason,
        num_prompt_tokens=len(state.prompt_token_ids),
        num_generation_tokens=len(child.token_ids),
        max_tokens=state.params.max_tokens,
        e2e=now - state.arrival,
        queue=scheduled - state.arrival,
        prefill=first - scheduled,
        decode=now - first,
        num_cached_tokens=child.num_cached_tokens,
    )
