"""Who runs in the next step, and with how many tokens."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from engine_server.engine.config import SchedulerConfig
from engine_server.engine.core.block_pool import BlockTable
from engine_server.engine.core.request import Request
from engine_server.engine.messages import RawTensor, RequestStep, TokenLogprobsArray
from engine_server.engine.stats import SchedulerStats


class Scheduled(NamedTuple):
    """A request's part of a step: its next `num_tokens` tokens."""

    request: Request
    num_tokens: int

    @property
    def samples(self) -> bool:
        """Whether the step reaches the request's last token, so that a new one follows."""
        return self.num_tokens == self.request.pending


Batch = list[Scheduled]


@dataclass(slots=True)
class Sampled:
    """A new token of a request; none, if there is an `error`, which ends this request alone, or if it pools."""

    token_id: int = -1
    logprobs: TokenLogprobsArray | None = None
    error: str | None = None
    pooled: RawTensor | None = None


class Scheduler:
    """Iteration-level scheduling over one paged KV cache (Orca, OSDI '22; vLLM, SOSP '23).

    A step has a budget of tokens. Decodes come first, so that a long prompt never stalls them; prompts take
    what is left, in chunks. Where blocks run out, the newest request gives its own back and is computed
    again later: its tokens are kept, so that nothing that was sent is lost.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        table: BlockTable,
        eos_token_ids: Iterable[int],
        regime: Callable[[Request], int] | None = None,
    ) -> None:
        self.config = config
        self.table = table
        self.eos_token_ids = frozenset(eos_token_ids)
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []  # in order of admission
        self.requests: dict[str, Request] = {}
        self.regime = regime or (lambda request: 0)
        self._num_preemptions = 0  # since the last stats

    def add(self, request: Request) -> None:
        self.requests[request.request_id] = request
        request.regime = self.regime(request)
        self.waiting.append(request)

    def abort(self, request_ids: Iterable[str]) -> None:
        """Forget requests and free their blocks at once; unknown ids are no error."""
        for request_id in request_ids:
            if request := self.requests.get(request_id):
                self._finish(request)

    def schedule(self) -> Batch:
        batch: Batch = []
        budget = self.config.max_num_batched_tokens
        preempted = self._num_preemptions
        for request in sorted(self.running, key=lambda request: request.pending > 1):
            if request.row is None:  # preempted by an earlier one in this very loop
                continue
            count = min(request.pending, budget)
            if count and self._make_room(request, count, batch):
                batch.append(Scheduled(request, count))
                budget -= count
        if self._num_preemptions > preempted:  # no room: what just went must not come straight back
            return batch
        while budget and self.waiting and self._admit(self.waiting[0], budget, batch):
            budget -= batch[-1].num_tokens
        return batch

    def update(self, batch: Batch, samples: Sequence[Sampled]) -> list[RequestStep]:
        """Advance every request by what the step computed; `samples` has one token for each that samples."""
        steps = []
        tokens = iter(samples)
        for scheduled in batch:
            samples_now, request = scheduled.samples, scheduled.request
            request.computed += scheduled.num_tokens
            if samples_now:
                steps.append(self._append(request, next(tokens)))
        return steps

    def stats(self) -> SchedulerStats:
        """The state now, and what was counted since the last call."""
        preemptions, self._num_preemptions = self._num_preemptions, 0
        return SchedulerStats(
            num_running=len(self.running),
            num_waiting=len(self.waiting),
            kv_cache_usage=self.table.pool.usage,
            num_preemptions=preemptions,
        )

    def _admit(self, request: Request, budget: int, batch: Batch) -> bool:
        """Start the request that waits longest, if a row, blocks for all its tokens, and budget are there."""
        if len(self.running) >= self.config.max_num_seqs or not self.table.has_free_row:
            return False
        if not self.config.enable_chunked_prefill and request.pending > budget:
            return False
        row, count = self.table.open(), min(request.pending, budget)
        if not self.table.grow(row, request.computed, request.computed + count, len(request.token_ids)):
            self.table.close(row)
            return False
        self.waiting.popleft()
        request.row = row
        request.scheduled = request.scheduled or time.monotonic()
        self.running.append(request)
        batch.append(Scheduled(request, count))
        return True

    def _make_room(self, request: Request, num_tokens: int, batch: Batch) -> bool:
        """Blocks for `num_tokens` more, taken from the newest requests where there are none; False if itself went."""
        assert request.row is not None
        until, total = request.computed + num_tokens, len(request.token_ids)
        while not self.table.grow(request.row, request.computed, until, total):
            newest = self.running[-1]
            self._preempt(newest, batch)
            if newest is request:
                return False
        return True

    def _preempt(self, request: Request, batch: Batch) -> None:
        batch[:] = [scheduled for scheduled in batch if scheduled.request is not request]
        self._release(request)
        request.computed = 0
        self.waiting.appendleft(request)
        self._num_preemptions += 1

    def _append(self, request: Request, sampled: Sampled) -> RequestStep:
        if sampled.error is not None:
            self._finish(request)
            return RequestStep(request.request_id, [], finish_reason="error", error=sampled.error)
        if sampled.pooled is not None:
            self._finish(request)
            return RequestStep(
                request.request_id, [], None, "stop", scheduled=request.scheduled, pooled=sampled.pooled
            )
        request.token_ids.append(sampled.token_id)
        reason, stop = request.params.end(
            sampled.token_id, request.num_output, request.max_tokens, self.eos_token_ids
        )
        if reason:
            self._finish(request)
        elif request.regime != self.regime(request):  # its keys aren't what they would be now
            request.regime = self.regime(request)
            self._preempt(request, [])
        prompt_logprobs, request.prompt_logprobs = request.prompt_logprobs, None
        return RequestStep(
            request_id=request.request_id,
            new_token_ids=[sampled.token_id],
            logprobs=[sampled.logprobs] if sampled.logprobs else None,
            finish_reason=reason,
            stop_reason=stop,
            scheduled=request.scheduled if request.num_output == request.num_resumed + 1 else None,
            prompt_logprobs=prompt_logprobs,
        )

    def _finish(self, request: Request) -> None:
        del self.requests[request.request_id]
        if request.row is None:
            self.waiting.remove(request)
        else:
            self._release(request)

    def _release(self, request: Request) -> None:
        assert request.row is not None
        self.running.remove(request)
        self.table.close(request.row)
        request.row = None
