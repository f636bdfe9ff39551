"""Iteration-level scheduling over one paged KV cache."""

import math
import time
from collections.abc import Callable, Iterable, Sequence

from engine_server.config import SchedulerConfig
from engine_server.core.adapters.adapter_pools import NO_POOLS, AdapterPools
from engine_server.core.cache.block_table import BlockTable
from engine_server.core.encoding.picture_rows import NO_PICTURES, PictureRows
from engine_server.core.scheduling.batch import Batch, Scheduled, by_request, num_tokens, sampled_part
from engine_server.core.scheduling.checkpoints import Checkpoints
from engine_server.core.scheduling.draft_counts import DraftCounts
from engine_server.core.scheduling.hashing import Hashing
from engine_server.core.scheduling.request import UNKNOWN, Refusal, Request
from engine_server.core.scheduling.rows import Rows
from engine_server.core.scheduling.scheduler_state import SchedulerState
from engine_server.core.scheduling.step_limit import StepLimit
from engine_server.core.scheduling.step_result import StepResult
from engine_server.core.scheduling.verification import verified_results
from engine_server.core.scheduling.waiting import waiting_requests
from engine_server.requests.messages import RequestStep
from engine_server.requests.scheduler_stats import FinishReason, SchedulerStats

# Maximum number of attempts to compute a request whose steps run out of memory; each halves the step.
MOST_RETRIES = 5


class Scheduler:
    """The choice of each step's requests and their numbers of tokens (Orca, OSDI '22; vLLM, SOSP '23).

    A step has a budget of tokens, and one with prompts may have a limit of time (step_limit.py). Decodes come first,
    so that a long prompt never stalls them; prompts take the rest, in chunks, in the order of the policy (waiting.py).
    When blocks run out, the running request that is last in this order is preempted: its blocks are freed, and it is
    computed again later. Its tokens and its queue position are kept, so that no output is lost and the first request
    in order always makes progress.

    enable_prefix_caching: share blocks between requests with equal prefixes (vLLM's automatic prefix caching).
    erase: zeroes blocks of each pool whose content is arbitrary, before other requests use them.
    rope_regime: returns the number that a request's keys depend on besides its tokens; when it changes, the keys are
        computed again.
    adapters: those that requests may name.
    rows: opened and closed with the rows of the table.
    pictures: the rows of those that prompts have.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        table: BlockTable,
        eos_token_ids: Iterable[int],
        enable_prefix_caching: bool,
        erase: Callable[[list[list[int]]], None],
        rope_regime: Callable[[Request], int] | None = None,
        adapters: AdapterPools = NO_POOLS,
        rows: Rows | None = None,
        pictures: PictureRows = NO_PICTURES,
    ) -> None:
        self.config = config
        self.table = table
        self.eos_token_ids = frozenset(eos_token_ids)
        self.enable_prefix_caching = enable_prefix_caching
        self.erase = erase
        self.rope_regime = rope_regime
        self.adapters = adapters
        self.rows = rows
        self._hashing = Hashing(table, enable_prefix_caching)
        self.pictures = pictures
        self._checkpoints = Checkpoints(table, enable_prefix_caching and config.enable_chunked_prefill)
        self.waiting = waiting_requests(config.policy)
        self.running: list[Request] = []
        self.requests: dict[str, Request] = {}
        # The running requests in the order of a step; None: it has changed.
        self._order: list[Request] | None = None
        self._budget = config.max_num_batched_tokens
        self._limit = StepLimit(config.max_step_ms / 1000) if config.max_step_ms else None
        self._num_admitted = 0
        # Counts since the last call of `stats`.
        self._num_preemptions = self._num_queried = self._num_hit = 0
        self._drafts = DraftCounts()

    @property
    def has_work(self) -> bool:
        """True if a request can run."""
        return bool(self.running) or any(request.ready for request in self.waiting)

    @property
    def prepares(self) -> bool:
        """True if a thread of this process prepares something that a request waits for."""
        return any(not request.settled for request in self.waiting)

    def __contains__(self, request: Request) -> bool:
        """Return True until the request has ended; a new request may then have its id."""
        return self.requests.get(request.request_id) is request

    def add(self, request: Request) -> None:
        """Queue a new request."""
        if self.rope_regime is not None:
            request.rope_regime = self.rope_regime(request)
        self.requests[request.request_id] = request
        self.waiting.add(request)

    def abort(self, request_ids: Iterable[str]) -> None:
        """Remove requests and free their blocks immediately. Unknown ids are ignored."""
        for request_id in request_ids:
            if request := self.requests.get(request_id):
                self._finish(request)

    def expire(self) -> list[RequestStep]:
        """End the requests whose deadline has passed, and return their last steps."""
        now = time.monotonic()
        late = [one for one in self.requests.values() if one.deadline is not None and one.deadline <= now]
        for request in late:
            self._finish(request)
        return [RequestStep(request.request_id, [], finish_reason="timeout") for request in late]

    def seconds_to_deadline(self) -> float:
        """Return the seconds until the next request expires: infinity without deadlines, 0 if one has passed."""
        deadlines = [one.deadline for one in self.requests.values() if one.deadline is not None]
        return max(0.0, min(deadlines, default=math.inf) - time.monotonic())

    def schedule(self) -> Batch:
        """Choose the next step's tokens, count them as computed, and expect a result for each request that samples."""
        self._preempt_outdated_ropes()
        self._hashing.begin_step()
        self.pictures.begin_step()
        batch: Batch = []
        budget = self._budget = min(self._budget + 1, self.config.max_num_batched_tokens)
        if self._limit is not None and self._has_prompts():
            num_decodes = sum(request.pending <= 1 for request in self.running)
            budget = min(budget, self._limit.num_tokens(num_decodes))
        preempted = self._num_preemptions
        spare = budget - len(self.running)  # drafts never cost a running request its next token
        for request in self._in_order():
            if request.row is None:  # preempted by an earlier iteration of this loop
                continue
            # A block that this token fills is published, unless the token is still unknown.
            filled = request.computed + (not request.num_unknown)
            if filled < request.steady_until and budget and not request.drafts:
                batch.append(Scheduled(request, request.row, request.computed, 1, samples=True))
                budget -= 1
                continue
            if request.last_result_launched:
                continue
            count = self._checkpoints.cut(request, request.computed, self._chunk(request.pending, budget))
            if count and self._make_room(request, count, batch):
                drafts = self._fitting_drafts(request, spare)
                self._take(request, count, batch, drafts)
                budget -= count + len(drafts)
                spare -= len(drafts)
        # After a preemption nothing is admitted, or the preempted request would take its blocks back.
        while self._num_preemptions == preempted and budget:
            first = self.waiting.first(self.adapters, self._must_wait)
            if first is None or not self._admit(first, budget, batch):
                break
            budget -= batch[-1].num_tokens
        for scheduled in batch:
            scheduled.request.computed += scheduled.num_tokens
            if scheduled.samples:
                scheduled.request.expect_result(scheduled.draft)
        return batch

    def observe(self, batch: Batch, seconds: float) -> None:
        """Take the duration of a step."""
        if self._limit is not None:
            self._limit.observe(batch, seconds)

    def read_adapters(self) -> None:
        """Start to read adapters that waiting requests need, in the order of the requests."""
        if self.adapters:
            self.adapters.read_next([request.adapters for request in self.waiting])

    def fail_unprepared(self) -> list[RequestStep]:
        """End the waiting requests whose adapter or picture can't be prepared, and return their last steps."""
        if not (self.adapters or self.pictures):
            return []
        failed = [(one, one.error or one.misfit) for one in self.waiting]
        return [
            self.fail(request, error, "error" if request.error else "refused")
            for request, error in failed
            if error
        ]

    def needs_results(self, batch: Batch) -> bool:
        """Return True if an earlier step's tokens must be known before those of `batch` can be sampled."""
        return any(
            scheduled.request.num_unknown > 1
            and scheduled.output_index >= scheduled.request.needs_last_token_from
            for scheduled in batch
        )

    def update(self, batch: Batch, results: Sequence[StepResult]) -> list[RequestStep]:
        """Take a step's results, one for each part that samples, in the batch's order."""
        return [
            self._accept(request, result, num_results)
            for request, result, num_results in verified_results(sampled_part(batch), results)
            if request in self  # otherwise it has ended since
        ]

    def fail(self, request: Request, error: str, reason: FinishReason = "error") -> RequestStep:
        """End a request with an error, and erase its blocks, whose content may be arbitrary."""
        if request.row is None:
            self.waiting.remove(request)
        else:
            self.erase(self._release(request, computed=0))
        self._forget(request)
        return RequestStep(request.request_id, [], finish_reason=reason, error=error)

    def retry(self, batch: Batch, error: str) -> list[RequestStep]:
        """Requeue a batch that did not fit into memory, for steps half as large; end requests that no size helps.

        The batch is the last that was scheduled, and has no results. The limit then grows by a token with each step,
        like TCP's congestion window.
        """
        chunked = self.config.enable_chunked_prefill
        if chunked:
            self._budget = max(1, num_tokens(batch) // 2)
        ended = []
        for request, parts in by_request(batch):
            if request not in self:
                continue
            request.computed = parts[0].start
            for _ in sampled_part(parts):
                request.cancel_result()
            request.num_retries += 1
            if chunked and request.num_retries <= MOST_RETRIES:
                self._preempt(request, [])
            else:
                ended.append(self.fail(request, error))
        return ended

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Empty the prefix cache. Return False and change nothing while requests run.

        reset_running_requests: preempt running requests first; they are computed again.
        """
        if reset_running_requests:
            self.preempt_all()
        done = self.table.reset()
        if done:
            self.pictures.clear()
        return done

    def preempt_all(self) -> None:
        """Preempt all running requests, so that every block is free."""
        for request in list(self.running):
            self._preempt(request, [])

    def stats(self) -> SchedulerStats:
        """Return the current state, and the counts since the last call."""
        pictures = self.pictures.take_counts()
        stats = SchedulerStats(
            num_running=len(self.running),
            num_waiting=len(self.waiting),
            kv_cache_usage=self.table.usage,
            num_preemptions=self._num_preemptions,
            prefix_cache_queries=self._num_queried,
            prefix_cache_hits=self._num_hit,
            tokens_without_state=self._checkpoints.take_count(),
            running_adapters=adapter_names(self.running) if self.adapters.lora else [],
            waiting_adapters=adapter_names(self.waiting) if self.adapters.lora else [],
            num_pictures_encoded=pictures.encoded,
            num_pictures_found=pictures.found,
            encoding_seconds=pictures.seconds,
            **self._drafts.take(),
        )
        self._num_preemptions = self._num_queried = self._num_hit = 0
        return stats

    def debug_state(self) -> SchedulerState:
        """Copy the state, for tests and bug reports."""
        pools = self.table.pools
        return SchedulerState(
            tuple(request.request_id for request in self.running),
            tuple(request.request_id for request in self.waiting),
            sum(pool.num_blocks for pool in pools),
            sum(pool.num_free for pool in pools),
            self.table.num_free_rows,
        )

    def _has_prompts(self) -> bool:
        """Return True if the next step may have tokens of prompts."""
        return bool(self.waiting) or any(request.pending > 1 for request in self._in_order()[-1:])

    def _in_order(self) -> list[Request]:
        """Return the running requests in the order of a step: decoding ones first, then by queue position."""
        if self._order is None:
            self._order = sorted(
                self.running, key=lambda request: (request.pending > 1, request.queue_position)
            )
        return self._order

    def _admit(self, request: Request, budget: int, batch: Batch) -> bool:
        """Start the first waiting request if there are a row, enough budget, and blocks for all its tokens."""
        if len(self.running) >= self.config.max_num_seqs or request.num_unknown:
            return False
        whole = self._must_run_whole(batch)
        if self._is_refused_still(request, budget, whole):
            return False
        total, hashes = len(request.token_ids), self._hashing.of(request)
        cached = self.table.num_cached(hashes)
        count = self._chunk(total - cached, budget)
        too_long = whole and count < total - cached
        without_state = self._checkpoints.plan(request, hashes, cached)
        count = self._checkpoints.cut(request, cached, count)
        num_blocks = self.table.num_missing(hashes, cached, cached + count, total)
        if too_long or not self.table.has_free(num_blocks):
            request.refusal = Refusal(total - cached, num_blocks, self._num_admitted)
            return False
        self._num_admitted += 1
        self._checkpoints.enter(request, hashes, without_state)
        row = self.table.open(hashes, cached)
        self.table.grow(row, cached, cached + count, total)
        self.waiting.remove(request)
        request.row, request.computed, request.confirmed = row, cached, cached
        if self.rows is not None:
            self.rows.open(row, request)
        self.running.append(request)
        self._order = None
        self.adapters.enter(request.adapters, first=request.scheduled is None)
        self._take(request, count, batch)
        if request.scheduled is None:
            request.scheduled = time.monotonic()
            request.num_cached = max(0, min(cached, request.num_prompt) - request.num_virtual)
            if self.enable_prefix_caching:
                self._num_queried += total
                self._num_hit += cached
        return True

    def _is_refused_still(self, request: Request, budget: int, whole: bool) -> bool:
        """Return True for a request that was refused and whose needs still can't be met."""
        refusal = request.refusal
        if refusal is None or refusal.num_admitted < self._num_admitted:
            return False
        too_long = whole and self._chunk(refusal.num_tokens, budget) < refusal.num_tokens
        return too_long or not self.table.has_free(refusal.num_blocks)

    def _must_wait(self, request: Request) -> bool:
        """Return True for a request that others pass.

        Its blocks are hashed, a running request computes a state at its prefix's end, or its pictures are prepared.
        """
        if not self._hashing.advance(request):
            return True
        if self._checkpoints.enabled and self._checkpoints.awaited_by(request, self._hashing.of(request)):
            return True
        if request.pictures is None:
            return False
        return not self.pictures.prepare(request.pictures, self.table.num_cached(self._hashing.of(request)))

    def _chunk(self, num_tokens: int, budget: int) -> int:
        """Return how many of a request's `num_tokens` uncomputed tokens a step takes."""
        threshold = self.config.long_prefill_token_threshold
        if threshold and self.config.enable_chunked_prefill:
            budget = min(budget, threshold)
        return min(num_tokens, budget)

    def _must_run_whole(self, batch: Batch) -> bool:
        """Return True if the limit of partially computed prompts is reached."""
        limit = self.config.max_num_partial_prefills
        return not self.config.enable_chunked_prefill or 0 < limit <= self._num_partial_prefills(batch)

    def _num_partial_prefills(self, batch: Batch) -> int:
        """Return how many running requests will be partially computed after this step."""
        taken = {scheduled.request.request_id: scheduled.num_tokens for scheduled in batch}
        return sum(request.pending - taken.get(request.request_id, 0) > 1 for request in self.running)

    def _fitting_drafts(self, request: Request, spare: int) -> list[int]:
        """Take a decoding request's drafts as far as the step, the request's limit and free blocks have room."""
        if not request.drafts:
            return []
        drafts, request.drafts = request.drafts, []
        drafts = drafts[: max(0, min(spare, request.max_length - len(request.token_ids) - 1))]
        if request.pending > 1 or request.num_unknown or not drafts:  # they may be those of an earlier step
            return []
        if self.table.num_free < len(self.running):
            return []
        assert request.row is not None
        end = len(request.token_ids) + len(drafts)
        return drafts if self.table.grow(request.row, request.computed, end, end) else []

    def _take(self, request: Request, count: int, batch: Batch, drafts: Sequence[int] = ()) -> None:
        """Add a request's next `count` tokens and its drafts to the batch, and publish the blocks that they fill.

        Drafts fill none before they are verified.
        """
        assert request.row is not None
        first, *others = [*drafts, UNKNOWN]
        samples = count == request.pending
        batch.append(Scheduled(request, request.row, request.computed, count, samples, first))
        for start, draft in enumerate(others, request.computed + count):
            batch.append(Scheduled(request, request.row, start, 1, True, draft))
        if request.pictures is not None and request.computed < request.num_prompt:
            self.pictures.use(request.pictures, request.computed + count)
        if self.enable_prefix_caching:
            end = request.computed + count
            self._publish(request, min(end, request.num_known), request.computed, end)
        if count > 1 or not samples:
            self._order = None  # the request may have become a decoding one
        if samples:
            steady_until = self.table.steady_until(request.row, self.enable_prefix_caching)
            request.steady_until = min(request.max_length - 1, steady_until)

    def _publish(self, request: Request, known: int, computed: int, end: int) -> None:
        """Publish the blocks of a request's first `known` tokens, in a step that computes from `computed` to `end`."""
        assert request.row is not None
        full = known // self.table.block_size
        if full > self.table.num_published(request.row):
            self._hashing.extend(request, full)
            self.table.publish(request.row, request.hashes, full, computed, end, request.checkpoints)

    def _make_room(self, request: Request, num_tokens: int, batch: Batch) -> bool:
        """Take blocks for a request's next tokens, preempting requests while there are too few.

        Return False if the request itself was preempted.
        """
        assert request.row is not None
        until, total = request.computed + num_tokens, len(request.token_ids)
        while not self.table.grow(request.row, request.computed, until, total):
            preempted = self.waiting.first_to_preempt(self.running)
            self._preempt(preempted, batch)
            if preempted is request:
                return False
        return True

    def _preempt(self, request: Request, batch: Batch) -> None:
        """Free a running request's blocks and queue it again; remove it from the batch."""
        batch[:] = [scheduled for scheduled in batch if scheduled.request is not request]
        # A step in flight may write NaN, so only confirmed tokens stay cached.
        freed = self._release(request, request.confirmed if request.num_unknown else request.computed)
        if request.num_unknown:
            self.erase(freed)
        if request.pictures is not None:
            self.pictures.release(request.pictures)
        self.waiting.put_back(request)
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
                request.forget_hashes()

    def _accept(self, request: Request, result: StepResult, num_results: int) -> RequestStep:
        if result.error is not None:
            return self.fail(request, result.error)
        if num_results > 1:
            self._drafts.count(num_results - 1, len(result.tokens) - 1)
        request.num_retries = 0  # counted since the last result, the only progress that is never lost
        step = request.accept(result, self.eos_token_ids, num_results)
        if step.finish_reason:
            self._finish(request)
        return step

    def _finish(self, request: Request) -> None:
        """Remove a request and free its blocks."""
        if request.row is None:
            self.waiting.remove(request)
        else:
            self._release(request, request.computed)
        self._forget(request)

    def _forget(self, request: Request) -> None:
        """Forget a request that has ended."""
        del self.requests[request.request_id]
        if request.pictures is not None:
            self.pictures.release(request.pictures)
        self.adapters.close(request.adapters, request.scheduled is not None)

    def _release(self, request: Request, computed: int) -> list[list[int]]:
        """Remove a request from the running ones, and return the blocks of each pool that became blank.

        computed: the number of its tokens that may stay cached.
        """
        assert request.row is not None
        self.running.remove(request)
        self._order = None
        self.adapters.leave(request.adapters)
        if self._checkpoints.enabled:  # a state is published a step later than blocks
            self._publish(request, min(computed, request.num_known), computed, computed)
        freed = self.table.close(request.row, computed)
        if self.rows is not None:
            self.rows.close(request.row)
        request.leave_row()
        return freed


def adapter_names(requests: Iterable[Request]) -> list[str]:
    """Return the names of the requests' LoRA adapters, each once."""
    loras = [request.adapters.lora for request in requests]
    return sorted({lora.named.lora_name for lora in loras if lora is not None})
