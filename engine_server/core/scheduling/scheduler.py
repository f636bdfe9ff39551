"""The choice of each step's requests and of the number of tokens that it computes of each."""

import itertools
import time
from bisect import insort
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter

from engine_server.config import SchedulerConfig
from engine_server.core.cache.block_pool import BlockTable
from engine_server.core.scheduling.batch import Batch, Scheduled, num_tokens, sampled_part
from engine_server.core.scheduling.request import Request
from engine_server.core.scheduling.step_result import StepResult
from engine_server.requests.messages import RequestStep
from engine_server.requests.scheduler_stats import SchedulerStats

by_queue_position = attrgetter("queue_position")


# Attempts to compute a request whose steps run out of memory; each step is half as large as the one before.
MOST_RETRIES = 5


class Scheduler:
    """Iteration-level scheduling over one paged KV cache (Orca, OSDI '22; vLLM, SOSP '23).

    A step has a budget of tokens. Decodes come first, so that a long prompt never stalls them; prompts take
    what is left, in chunks, by priority and then by arrival. Where blocks run out, the running request that came
    last in this order gives its own back and is computed again later: its tokens and its place are kept, so that
    nothing that was sent is lost, and the first in order always gets on.

    enable_prefix_caching: let requests share the blocks of equal beginnings (vLLM's automatic prefix caching).
    erase: makes zeros of blocks that may contain anything, before others use them.
    rope_regime: what a request's keys depend on besides its tokens; where it changes, they are computed again.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        table: BlockTable,
        eos_token_ids: Iterable[int],
        enable_prefix_caching: bool,
        erase: Callable[[list[int]], None],
        rope_regime: Callable[[Request], int] | None = None,
    ) -> None:
        self.config = config
        self.table = table
        self.eos_token_ids = frozenset(eos_token_ids)
        self.enable_prefix_caching = enable_prefix_caching
        self.erase = erase
        self.rope_regime = rope_regime
        self.waiting: list[Request] = []  # by queue position
        self.running: list[Request] = []
        self.requests: dict[str, Request] = {}
        self._budget = config.max_num_batched_tokens
        self._arrivals = itertools.count()
        self._num_preemptions = self._num_queried = self._num_hit = 0  # since the last stats

    def __contains__(self, request: Request) -> bool:
        """Whether it has not ended; another may have its id by now."""
        return self.requests.get(request.request_id) is request

    def add(self, request: Request) -> None:
        request.queue_position = (request.priority, next(self._arrivals))
        if self.rope_regime is not None:
            request.rope_regime = self.rope_regime(request)
        self.requests[request.request_id] = request
        insort(self.waiting, request, key=by_queue_position)

    def abort(self, request_ids: Iterable[str]) -> None:
        """Forget requests and free their blocks at once; unknown ids are no error."""
        for request_id in request_ids:
            if request := self.requests.get(request_id):
                self._finish(request)

    def expire(self) -> list[RequestStep]:
        """End the requests whose deadline has passed."""
        now = time.monotonic()
        late = [one for one in self.requests.values() if one.deadline is not None and one.deadline <= now]
        for request in late:
            self._finish(request)
        return [RequestStep(request.request_id, [], finish_reason="timeout") for request in late]

    def schedule(self) -> Batch:
        """Choose the next step's tokens, count them as computed, and expect a result of each request that samples."""
        self._preempt_outdated_ropes()
        batch: Batch = []
        budget = self._budget = min(self._budget + 1, self.config.max_num_batched_tokens)
        preempted = self._num_preemptions
        for request in sorted(
            self.running, key=lambda request: (request.pending > 1, request.queue_position)
        ):
            if request.row is None:  # preempted by an earlier one in this very loop
                continue
            if request.last_result_launched:
                continue
            count = min(request.pending, budget)
            if count and self._make_room(request, count, batch):
                self._take(request, count, batch)
                budget -= count
        # After a preemption nothing is admitted, or the request that gave its blocks back would take them again.
        while self._num_preemptions == preempted and budget and self.waiting:
            if not self._admit(self.waiting[0], budget, batch):
                break
            budget -= batch[-1].num_tokens
        for scheduled in batch:
            scheduled.request.computed += scheduled.num_tokens
            if scheduled.samples:
                scheduled.request.expect_result()
        return batch

    def needs_results(self, batch: Batch) -> bool:
        """Return True if an earlier step's tokens must be known before those of `batch` can be sampled."""
        return any(
            scheduled.request.num_unknown > 1 and scheduled.request.needs_last_token for scheduled in batch
        )

    def update(self, batch: Batch, results: Sequence[StepResult]) -> list[RequestStep]:
        """Take a step's results, one for each request that samples, in the batch's order."""
        return [
            self._accept(scheduled.request, result)
            for scheduled, result in zip(sampled_part(batch), results, strict=True)
            if scheduled.request in self  # else it ended in the meantime
        ]

    def fail(self, request: Request, error: str) -> RequestStep:
        """End a request that can't go on. Nobody may find or read what it left behind."""
        del self.requests[request.request_id]
        if request.row is None:
            self.waiting.remove(request)
        else:
            self.erase(self._release(request, computed=0))
        return RequestStep(request.request_id, [], finish_reason="error", error=error)

    def retry(self, batch: Batch, error: str) -> list[RequestStep]:
        """Requeue a batch that did not fit into memory, for steps half as large; end requests that no size helps.

        The batch is the last that was scheduled, and gives no results. Steps grow again by a token each, as TCP's
        window does.
        """
        chunked = self.config.enable_chunked_prefill
        if chunked:
            self._budget = max(1, num_tokens(batch) // 2)
        ended = []
        for scheduled in batch:
            request = scheduled.request
            if request not in self:
                continue
            request.computed = scheduled.start
            if scheduled.samples:
                request.cancel_result()
            request.num_retries += 1
            if chunked and request.num_retries <= MOST_RETRIES:
                self._preempt(request, [])
            else:
                ended.append(self.fail(request, error))
        return ended

    def reset_prefix_cache(self) -> bool:
        """Forget what blocks contain; False, and nothing done, while requests run."""
        return self.table.pool.reset()

    def preempt_all(self) -> None:
        """Take every block back; whatever runs is computed again later."""
        for request in list(self.running):
            self._preempt(request, [])

    def stats(self) -> SchedulerStats:
        """The state now, and what was counted since the last call."""
        stats = SchedulerStats(
            num_running=len(self.running),
            num_waiting=len(self.waiting),
            kv_cache_usage=self.table.pool.usage,
            num_preemptions=self._num_preemptions,
            prefix_cache_queries=self._num_queried,
            prefix_cache_hits=self._num_hit,
        )
        self._num_preemptions = self._num_queried = self._num_hit = 0
        return stats

    def _admit(self, request: Request, budget: int, batch: Batch) -> bool:
        """Start the request that waits first, if a row, blocks for all its tokens, and budget are there."""
        if len(self.running) >= self.config.max_num_seqs or request.num_unknown:
            return False
        total = len(request.token_ids)
        row, cached = self.table.open(self._known_hashes(request))
        count = min(total - cached, budget)
        whole = self.config.enable_chunked_prefill or count == total - cached
        if not whole or not self.table.grow(row, cached, cached + count, total):
            self.table.close(row, cached)
            return False
        del self.waiting[0]
        request.row, request.computed, request.confirmed = row, cached, cached
        self.running.append(request)
        self._take(request, count, batch)
        if request.scheduled is None:
            request.scheduled = time.monotonic()
            request.num_cached = min(cached, request.num_prompt)
            if self.enable_prefix_caching:
                self._num_queried += total
                self._num_hit += cached
        return True

    def _known_hashes(self, request: Request) -> list[bytes]:
        """Of the blocks that may be found: all full ones before the last token, which must be computed."""
        if not self.enable_prefix_caching or not request.reads_prefix_cache:
            return []
        count = (len(request.token_ids) - 1) // self.table.block_size
        request.hash_blocks(count, self.table.block_size)
        return request.hashes[:count]

    def _take(self, request: Request, count: int, batch: Batch) -> None:
        assert request.row is not None
        batch.append(
            Scheduled(request, request.row, request.computed, count, samples=count == request.pending)
        )
        if self.enable_prefix_caching:
            known = min(request.computed + count, len(request.token_ids) - request.num_unknown)
            full = known // self.table.block_size
            request.hash_blocks(full, self.table.block_size)
            self.table.publish(request.row, request.hashes, full)

    def _make_room(self, request: Request, num_tokens: int, batch: Batch) -> bool:
        """Blocks for `num_tokens` more, taken from the last in order where there are none; False if itself went."""
        assert request.row is not None
        until, total = request.computed + num_tokens, len(request.token_ids)
        while not self.table.grow(request.row, request.computed, until, total):
            last = max(self.running, key=by_queue_position)
            self._preempt(last, batch)
            if last is request:
                return False
        return True

    def _preempt(self, request: Request, batch: Batch) -> None:
        batch[:] = [scheduled for scheduled in batch if scheduled.request is not request]
        # What is on its way may turn out to be no number.
        freed = self._release(request, request.confirmed if request.num_unknown else request.computed)
        if request.num_unknown:
            self.erase(freed)
        request.computed = 0
        insort(self.waiting, request, key=by_queue_position)
        self._num_preemptions += 1

    def _preempt_outdated_ropes(self) -> None:
        """Requeue requests whose length has changed the rope, and with it the keys that are cached."""
        if self.rope_regime is None:
            return
        for request in list(self.running):
            regime = self.rope_regime(request)
            if request.rope_regime != regime:
                self._preempt(request, [])
                request.rope_regime = regime
                request.hashes.clear()

    def _accept(self, request: Request, result: StepResult) -> RequestStep:
        if result.error is not None:
            return self.fail(request, result.error)
        step = request.accept(result, self.eos_token_ids)
        if step.finish_reason:
            self._finish(request)
        return step

    def _finish(self, request: Request) -> None:
        del self.requests[request.request_id]
        if request.row is None:
            self.waiting.remove(request)
        else:
            self._release(request, request.computed)

    def _release(self, request: Request, computed: int) -> list[int]:
        """Take a request out of the running; the blocks that nobody holds or can find now."""
        assert request.row is not None
        self.running.remove(request)
        freed = self.table.close(request.row, computed)
        request.row = None
        return freed
