"""Who runs in the next step, and with how many tokens."""

import itertools
import time
from bisect import insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from engine_server.config import SchedulerConfig
from engine_server.core.cache.block_pool import BlockTable
from engine_server.core.scheduling.request import Request
from engine_server.requests.messages import RawTensor, RequestStep, TokenLogprobsArray
from engine_server.requests.scheduler_stats import SchedulerStats

by_place = attrgetter("place")


class Scheduled(NamedTuple):
    """A request's part of a step: its next `num_tokens` tokens."""

    request: Request
    num_tokens: int

    @property
    def samples(self) -> bool:
        """Whether the step reaches the request's last token, so that a new one follows."""
        return self.num_tokens == self.request.pending


Batch = list[Scheduled]
MOST_RETRIES = 5  # of a request whose steps are too large; each is half as large as the one before
UNKNOWN = -1  # stands for a token that is on its way from the device


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
    what is left, in chunks, by priority and then by arrival. Where blocks run out, the running request that came
    last in this order gives its own back and is computed again later: its tokens and its place are kept, so that
    nothing that was sent is lost, and the first in order always gets on.

    enable_prefix_caching: let requests share the blocks of equal beginnings (vLLM's automatic prefix caching).
    erase: makes zeros of blocks that may contain anything, before others use them.
    regime: what a request's keys depend on besides its tokens; where it changes, they are computed again.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        table: BlockTable,
        eos_token_ids: Iterable[int],
        enable_prefix_caching: bool,
        erase: Callable[[list[int]], None],
        regime: Callable[[Request], int] | None = None,
    ) -> None:
        self.config = config
        self.table = table
        self.eos_token_ids = frozenset(eos_token_ids)
        self.enable_prefix_caching = enable_prefix_caching
        self.erase = erase
        self.regime = regime or (lambda request: 0)
        self.waiting: list[Request] = []  # by place
        self.running: list[Request] = []
        self.requests: dict[str, Request] = {}
        self._budget = config.max_num_batched_tokens
        self._arrivals = itertools.count()
        self._num_preemptions = self._num_queried = self._num_hit = 0  # since the last stats

    def __contains__(self, request: Request) -> bool:
        """Whether it has not ended; another may have its id by now."""
        return self.requests.get(request.request_id) is request

    def add(self, request: Request) -> None:
        request.place = (request.priority, next(self._arrivals))
        request.regime = self.regime(request)
        self.requests[request.request_id] = request
        insort(self.waiting, request, key=by_place)

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
        batch: Batch = []
        budget = self._budget = min(self._budget + 1, self.config.max_num_batched_tokens)
        preempted = self._num_preemptions
        for request in sorted(self.running, key=lambda request: (request.pending > 1, request.place)):
            if request.row is None:  # preempted by an earlier one in this very loop
                continue
            if request.num_unknown and request.num_output >= request.max_tokens:  # its last is on its way
                continue
            count = min(request.pending, budget)
            if count and self._make_room(request, count, batch):
                self._take(request, count, batch)
                budget -= count
        if self._num_preemptions > preempted:  # no room: what just went must not come straight back
            return batch
        while budget and self.waiting and self._admit(self.waiting[0], budget, batch):
            budget -= batch[-1].num_tokens
        return batch

    def advance(self, batch: Batch) -> list[Request]:
        """Count what was launched as computed; the requests that sample, each with a token to come."""
        sampling = [scheduled.request for scheduled in batch if scheduled.samples]
        for request, num_tokens in batch:
            request.computed += num_tokens
        for request in sampling:
            request.token_ids.append(UNKNOWN)
            request.num_unknown += 1
            if request.regime != self.regime(request):  # its keys aren't what they would be now
                self._preempt(request, [])
                request.regime = self.regime(request)
                request.hashes.clear()
        return sampling

    @property
    def needs_tokens(self) -> bool:
        """Whether a request's next token can't be chosen before the host knows the last one."""
        return any(request.num_unknown and request.params.needs_last_token for request in self.running)

    def update(self, sampling: Sequence[Request], samples: Sequence[Sampled]) -> list[RequestStep]:
        """Take the tokens that have come, in the order in which `advance` gave their requests."""
        return [
            self._append(request, sampled)
            for request, sampled in zip(sampling, samples, strict=True)
            if request in self  # else it ended meanwhile
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
        """Compute a batch that was too large again, in steps half as large; requests end that no size helps.

        Steps grow again by a token each, as TCP's window does.
        """
        chunked = self.config.enable_chunked_prefill
        if chunked:
            self._budget = max(1, sum(num_tokens for _, num_tokens in batch) // 2)
        ended = []
        for request, _ in batch:
            request.num_retries += 1
            if chunked and request.num_retries <= MOST_RETRIES:
                self._preempt(request, [])
            else:
                ended.append(self.fail(request, error))
        return ended

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forget what blocks contain. Return False, with nothing done, while requests run.

        reset_running_requests: preempt running requests first; they are computed again.
        """
        if reset_running_requests:
            self.preempt_all()
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
        request.row, request.computed, request.settled = row, cached, cached
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
        if not self.enable_prefix_caching or request.prompt_logprobs is not None:
            return []
        count = (len(request.token_ids) - 1) // self.table.block_size
        request.hash_blocks(count, self.table.block_size)
        return request.hashes[:count]

    def _take(self, request: Request, count: int, batch: Batch) -> None:
        batch.append(Scheduled(request, count))
        if self.enable_prefix_caching:
            assert request.row is not None
            known = min(request.computed + count, len(request.token_ids) - request.num_unknown)
            full = known // self.table.block_size
            request.hash_blocks(full, self.table.block_size)
            self.table.publish(request.row, request.hashes, full)

    def _make_room(self, request: Request, num_tokens: int, batch: Batch) -> bool:
        """Blocks for `num_tokens` more, taken from the last in order where there are none; False if itself went."""
        assert request.row is not None
        until, total = request.computed + num_tokens, len(request.token_ids)
        while not self.table.grow(request.row, request.computed, until, total):
            last = max(self.running, key=by_place)
            self._preempt(last, batch)
            if last is request:
                return False
        return True

    def _preempt(self, request: Request, batch: Batch) -> None:
        batch[:] = [scheduled for scheduled in batch if scheduled.request is not request]
        # What is on its way may turn out to be no number.
        freed = self._release(request, request.settled if request.num_unknown else request.computed)
        if request.num_unknown:
            self.erase(freed)
        request.computed = 0
        insort(self.waiting, request, key=by_place)
        self._num_preemptions += 1

    def _append(self, request: Request, sampled: Sampled) -> RequestStep:
        if sampled.error is not None:
            return self.fail(request, sampled.error)
        if sampled.pooled is not None:
            self._finish(request)
            return RequestStep(
                request.request_id, [], None, "stop", scheduled=request.scheduled, pooled=sampled.pooled
            )
        request.num_retries = (
            0  # a token is progress, which computed prompt tokens are not: they may be lost again
        )
        place = len(request.token_ids) - request.num_unknown
        request.token_ids[place] = sampled.token_id
        request.num_unknown -= 1
        request.settled = place
        num_output = place + 1 - request.num_prompt
        reason, stop = request.params.end(
            sampled.token_id, num_output, request.max_tokens, self.eos_token_ids
        )
        if reason:
            self._finish(request)
        first = num_output == request.num_resumed + 1
        prompt_logprobs, request.prompt_logprobs = request.prompt_logprobs, None
        return RequestStep(
            request_id=request.request_id,
            new_token_ids=[sampled.token_id],
            logprobs=[sampled.logprobs] if sampled.logprobs else None,
            finish_reason=reason,
            stop_reason=stop,
            scheduled=request.scheduled if first else None,
            num_cached_tokens=request.num_cached if first else 0,
            prompt_logprobs=prompt_logprobs,
        )

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
