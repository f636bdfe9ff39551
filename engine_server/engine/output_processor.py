"""From the core's steps to what callers see, and to statistics. One per engine, in the caller's process."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer

from engine_server.engine.detokenizer import Detokenizer
from engine_server.engine.messages import AddRequest, RequestStep, TokenLogprobsArray
from engine_server.engine.outputs import CompletionOutput, Logprob, RequestOutput, TokenLogprobs
from engine_server.engine.sampling_params import RequestOutputKind, SamplingParams
from engine_server.engine.stats import FinishedRequest, FinishReason, IterationStats


@dataclass(slots=True)
class RequestState:
    """A request under way: what was made of it so far, and how much of that was told."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    params: SamplingParams
    detokenizer: Detokenizer | None
    token_ids: list[int]
    logprobs: list[TokenLogprobs]
    arrival: float
    cumulative_logprob: float = 0.0
    scheduled: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0
    told_tokens: int = 0
    told_text: int = 0


class OutputProcessor:
    """Keeps each request's state from admission to its last output."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._states: dict[str, RequestState] = {}

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._states

    def __len__(self) -> int:
        return len(self._states)

    def add(self, request: AddRequest, prompt: str | None) -> None:
        params = request.params
        detokenizer = None
        if params.detokenize and self._tokenizer is not None:
            detokenizer = Detokenizer(self._tokenizer, request.prompt_token_ids, params)
        self._states[request.request_id] = RequestState(
            request.request_id, prompt, request.prompt_token_ids, params, detokenizer, [], [], request.arrival
        )

    def process(
        self, steps: Sequence[RequestStep], stats: IterationStats
    ) -> tuple[list[RequestOutput], list[str]]:
        """The outputs to give, and the ids of requests that a stop string ended, which the core must abort."""
        now = time.monotonic()
        outputs, stopped = [], []
        for step in steps:
            state = self._states.get(step.request_id)
            if state is None:  # aborted while the core was at work
                continue
            self._count(state, step, now, stats)
            reason, stop_reason = self._append(state, step)
            if reason and not step.finish_reason:
                stopped.append(state.request_id)
            if output := self._output(state, reason, stop_reason):
                outputs.append(output)
            if reason:
                self._finish(state, reason, now, stats)
        return outputs, stopped

    def abort(self, request_ids: Iterable[str], stats: IterationStats) -> list[RequestOutput]:
        """Forget requests; a last output for each that was known, with everything not told yet."""
        outputs = []
        for request_id in request_ids:
            if state := self._states.get(request_id):
                if output := self._output(state, "abort", None):
                    outputs.append(output)
                self._finish(state, "abort", time.monotonic(), stats)
        return outputs

    def _append(self, state: RequestState, step: RequestStep) -> tuple[FinishReason | None, int | str | None]:
        """Add the step's tokens; why the request ends, if it does."""
        before = len(state.token_ids)
        state.token_ids += step.new_token_ids
        for token in step.logprobs or ():
            state.logprobs.append(self._decode_logprobs(token))
            state.cumulative_logprob += token.logprobs[0]
        if state.detokenizer is None:
            return step.finish_reason, step.stop_reason
        # The token that ends a text is no part of it: an end of sequence, or a stop token.
        ended_by_token = step.finish_reason == "stop" and not state.params.include_stop_str_in_output
        shown = step.new_token_ids[:-1] if ended_by_token else step.new_token_ids
        stop = state.detokenizer.append(shown, bool(step.finish_reason), before)
        return ("stop", stop) if stop else (step.finish_reason, step.stop_reason)

    def _output(
        self, state: RequestState, reason: FinishReason | None, stop_reason: int | str | None
    ) -> RequestOutput | None:
        kind = state.params.output_kind
        if kind == RequestOutputKind.FINAL_ONLY and reason is None:
            return None
        text = state.detokenizer.text if state.detokenizer else ""
        first_token = first_character = 0
        if kind == RequestOutputKind.DELTA:
            first_token, first_character = state.told_tokens, state.told_text
            state.told_tokens, state.told_text = len(state.token_ids), len(text)
        wanted = state.params.logprobs is not None
        completion = CompletionOutput(
            index=0,
            text=text[first_character:],
            token_ids=state.token_ids[first_token:],
            cumulative_logprob=state.cumulative_logprob if wanted else None,
            logprobs=state.logprobs[first_token:] if wanted else None,
            finish_reason=reason,
            stop_reason=stop_reason,
        )
        return RequestOutput(
            state.request_id, state.prompt, state.prompt_token_ids, [completion], finished=reason is not None
        )

    def _decode_logprobs(self, token: TokenLogprobsArray) -> TokenLogprobs:
        return {
            token_id: Logprob(logprob, rank, self._tokenizer.decode([token_id]) if self._tokenizer else "")
            for token_id, logprob, rank in zip(token.token_ids, token.logprobs, token.ranks, strict=True)
        }

    def _count(self, state: RequestState, step: RequestStep, now: float, stats: IterationStats) -> None:
        stats.num_generation_tokens += len(step.new_token_ids)
        if step.scheduled is not None:
            state.scheduled, state.first_token = step.scheduled, now
            stats.num_prompt_tokens += len(state.prompt_token_ids)
            stats.time_to_first_tokens.append(now - state.arrival)
        elif step.new_token_ids:
            stats.inter_token_latencies.append(now - state.last_token)
        state.last_token = now

    def _finish(self, state: RequestState, reason: FinishReason, now: float, stats: IterationStats) -> None:
        del self._states[state.request_id]
        scheduled, first = state.scheduled or now, state.first_token or now
        stats.finished.append(
            FinishedRequest(
                reason=reason,
                num_prompt_tokens=len(state.prompt_token_ids),
                num_generation_tokens=len(state.token_ids),
                max_tokens=state.params.max_tokens,
                e2e=now - state.arrival,
                queue=scheduled - state.arrival,
                prefill=first - scheduled,
                decode=now - first,
            )
        )
