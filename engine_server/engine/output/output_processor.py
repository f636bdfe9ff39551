"""Conversion of the core's steps to outputs and statistics, in the caller's process."""

import itertools
import logging
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec
from tokenizers import Tokenizer

from engine_server.engine.output.detokenizer import Detokenizer
from engine_server.engine.output.logprobs import LogprobsConverter
from engine_server.engine.output.request_state import (
    Completion,
    GenerationState,
    PoolingState,
    RequestState,
)
from engine_server.engine.output.request_stats import finished_request, record_step
from engine_server.engine.output.stop_matcher import StopAutomaton
from engine_server.engine.output.token_texts import TokenTexts
from engine_server.requests.logprobs import FlatLogprobs
from engine_server.requests.messages import AddRequest, PromptLogprobsPart, RequestStep
from engine_server.requests.outputs import Output, RequestMetrics
from engine_server.requests.submission import Submission
from engine_server.telemetry.stats import EndedRequest, IterationStats

logger = logging.getLogger(__name__)


class PreparedRequest(NamedTuple):
    """A checked request: its state in the front end, and its message to the core."""

    state: RequestState
    message: AddRequest


class OutputProcessor:
    """The states of all requests in flight. An error while one is processed ends that request alone."""

    def __init__(
        self, tokenizer: Tokenizer | None, eos_token_ids: Iterable[int], texts: TokenTexts | None = None
    ) -> None:
        """texts: those of log-probabilities; None: as the tokenizer decodes each token alone."""
        self._tokenizer = tokenizer
        self._eos_token_ids = frozenset(eos_token_ids)
        self._converter = LogprobsConverter(texts or TokenTexts(tokenizer))
        # For requests that are not detokenized.
        self._textless_converter = LogprobsConverter(TokenTexts())
        self._core_ids = itertools.count()
        # By the caller's id.
        self._states: dict[str, RequestState] = {}
        # By the core's id: completions that have not ended.
        self._running: dict[str, tuple[RequestState, Completion]] = {}
        # By the caller's id: requests that the tokens they resume have ended, with no output yet.
        self._ended: dict[str, RequestState] = {}

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._states

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[RequestState]:
        return iter(self._states.values())

    def state_of(self, core_id: str) -> RequestState | None:
        """Return the state of the request with a completion that has not ended; None if there is none."""
        running = self._running.get(core_id)
        return None if running is None else running[0]

    @property
    def num_running(self) -> int:
        """The number of completions that have not ended."""
        return len(self._running)

    def prepare(
        self, submission: Submission, request: AddRequest, token_ids: list[int], prompt: str | None
    ) -> PreparedRequest:
        """Build a request's state, and complete its message.

        token_ids: those of the message. prompt: its text, if known. Changes no request in flight, so any thread may
        call it.
        """
        first = len(token_ids) - request.num_resumed
        prompt_token_ids, resumed = token_ids[:first], token_ids[first:]
        params = request.params
        stops = StopAutomaton(params.stop_strings) if params.stop_strings else None
        request.request_ids = [str(next(self._core_ids)) for _ in range(params.num_children)]
        if params.num_children > params.n and params.logprobs is None:
            request.params = msgspec.structs.replace(params, logprobs=0)  # the likeliest are chosen by them
        completions = [Completion(core_id, index) for index, core_id in enumerate(request.request_ids)]
        now = time.monotonic()
        metrics = RequestMetrics(arrival_time=time.time() - now + request.arrival, queued_ts=now)
        if params.flat_logprobs:
            for completion in completions:
                completion.logprobs = FlatLogprobs()
        if params.detokenize and self._tokenizer is not None:
            for completion in completions:
                scope = submission.stop_scope() if stops and submission.stop_scope else None
                completion.detokenizer = Detokenizer(self._tokenizer, prompt_token_ids, params, stops, scope)
        converter = self._converter if params.detokenize else self._textless_converter
        state: RequestState
        if request.pooling is not None:
            state = PoolingState(
                request_id=submission.request_id, prompt_token_ids=prompt_token_ids, params=params,
                arrival=request.arrival, completions=completions, trace_headers=submission.origin.trace_headers,
                metrics=metrics, pooling=request.pooling,
            )  # fmt: skip
        else:
            state = GenerationState(
                request_id=submission.request_id, prompt_token_ids=prompt_token_ids, params=params,
                arrival=request.arrival, completions=completions, trace_headers=submission.origin.trace_headers,
                metrics=metrics, prompt=prompt, converter=converter,
            )  # fmt: skip
            if params.prompt_logprobs is not None:  # the first token has none
                state.prompt_logprobs = FlatLogprobs([None]) if params.flat_logprobs else [None]
                spans = request.picture_spans
                state.placeholders = {one.start + row for one in spans for row in range(one.length)}
        if resumed:
            self._replay(state, resumed, request.max_tokens)
        return PreparedRequest(state, request)

    def add(self, state: RequestState) -> bool:
        """Store a request's state; return False if the tokens that it resumes already end it."""
        self._states[state.request_id] = state
        for completion in state.completions:
            self._running[completion.core_id] = state, completion
        if state.finished:
            self._ended[state.request_id] = state
        return not state.finished

    def process(self, steps: Sequence[RequestStep], stats: IterationStats) -> tuple[list[Output], list[str]]:
        """Return the outputs that are due, and the core's ids of requests that it must abort."""
        now = time.monotonic()
        aborts: list[str] = []
        touched, self._ended = self._ended, {}
        for step in steps:
            running = self._running.get(step.request_id)
            if running is None:  # aborted while the step was computed
                continue
            state, completion = running
            if completion.finish_reason:  # failed with another completion of its request
                continue
            try:
                record_step(state, completion, step, now, stats)
                if not state.append(completion, step):
                    stats.num_short_way_tokens += len(step.new_token_ids)
                    continue
            except Exception as error:
                aborts += self._fail(state, error)
            else:
                if completion.finish_reason and not step.finish_reason:  # by a stop string
                    aborts.append(completion.core_id)
            touched[state.request_id] = state
        outputs = self._outputs(touched.values(), aborts)
        self._forget_ended(touched.values(), now, stats)
        return outputs, aborts

    def abort(self, request_ids: Iterable[str], stats: IterationStats) -> tuple[list[Output], list[str]]:
        """End requests, and ignore unknown ids.

        Returns a last output for each with everything that is not reported yet, and the core's ids to abort.
        """
        states = [self._states[name] for name in dict.fromkeys(request_ids) if name in self._states]
        aborts = [core_id for state in states for core_id in state.abort()]
        outputs = self._outputs(states, aborts)
        self._forget_ended(states, time.monotonic(), stats)
        return outputs, aborts

    def add_prompt_logprobs(
        self, part: PromptLogprobsPart, stats: IterationStats
    ) -> tuple[list[Output], list[str]]:
        """Add log-probabilities of a prompt. Returns a last output and ids to abort if that ends its request."""
        outputs: list[Output] = []
        aborts: list[str] = []
        running = self._running.get(part.request_id)
        if running is not None and isinstance(state := running[0], GenerationState):
            try:
                state.add_prompt_logprobs(part.tokens)
            except Exception as error:
                aborts = self._fail(state, error)
                outputs = self._outputs([state], aborts)
                self._forget_ended([state], time.monotonic(), stats)
        return outputs, aborts

    def _replay(self, state: RequestState, resumed: Sequence[int], max_tokens: int) -> None:
        """Add the tokens that a request resumes, up to one that ends it, as already reported."""
        (completion,) = state.completions
        for number, token_id in enumerate(resumed, 1):
            reason, stop = state.params.end(token_id, number, max_tokens, self._eos_token_ids)
            state.append(completion, RequestStep(completion.core_id, [token_id], None, reason, stop))
            completion.logprobs.append({})
            completion.resumed_text.append(completion.take_text())
            if completion.finish_reason:
                break
        completion.num_reported = len(completion.token_ids)
        completion.text = "".join(completion.resumed_text)

    def _fail(self, state: RequestState, error: Exception) -> list[str]:
        """End a request with the error raised while it was processed; return the core's ids to abort."""
        logger.error("request %s failed", state.request_id, exc_info=error)
        return state.fail(f"{type(error).__name__}: {error}")

    def _outputs(self, states: Collection[RequestState], aborts: list[str]) -> list[Output]:
        """Return the outputs that are due, and add to `aborts` the requests whose outputs can't be built."""
        outputs = []
        for state in states:
            try:
                output = state.output()
            except Exception as error:
                aborts += self._fail(state, error)
                output = state.last_output()
            if output is not None:
                outputs.append(output)
        return outputs

    def _forget_ended(self, states: Iterable[RequestState], now: float, stats: IterationStats) -> None:
        """Record the statistics of completions and requests that have ended, and drop their states."""
        for state in states:
            for completion in state.completions:
                if completion.finish_reason and self._running.pop(completion.core_id, None):
                    completion.stats = finished_request(state, completion, completion.finish_reason, now)
                    stats.finished.append(completion.stats)
            if state.finished:
                ended = [completion.stats for completion in state.completions if completion.stats]
                stats.ended.append(EndedRequest(state.request_id, state.params, state.trace_headers, ended))
                del self._states[state.request_id]
                self._ended.pop(state.request_id, None)
