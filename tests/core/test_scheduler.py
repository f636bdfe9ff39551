"""The scheduler and its block table without a model: invariants under any plan, and individual rules."""

import math
import time
from collections.abc import Collection
from typing import Any, get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scheduling import BLOCK, LONGEST, make, request, run

from engine_server.config.scheduler import SchedulingPolicy
from engine_server.core.model_inputs import model_inputs
from engine_server.core.scheduling.batch import Batch, by_request, has_drafts, num_tokens, sampled_part
from engine_server.core.scheduling.integrity import check_integrity
from engine_server.core.scheduling.request import UNKNOWN, GenerationRequest, Request
from engine_server.core.scheduling.scheduler import Scheduler
from engine_server.core.scheduling.step_limit import FEWEST, FIRST
from engine_server.core.scheduling.step_result import StepResult
from engine_server.modeling.cache.spec import FULL, CacheSpec, ChunkSpec, WindowSpec
from engine_server.modeling.graphs.staging import Staging
from engine_server.modeling.platform.cpu import CpuPlatform
from engine_server.requests.messages import RequestStep
from engine_server.requests.sampling_params import SamplingParams


class Device:
    """A fake model that writes a step's tokens to the cache, then reads every slot that each token attends to.

    A slot's content is the tokens up to it, so that a read is correct only if each of them was computed. Slots are
    found by the block table on the device, which receives only changed cells.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.slots: dict[tuple[int, int, int], tuple[int, ...]] = {}
        scheduler.erase = self.erase
        self.staging = Staging(64, 64, scheduler.table.ids.shape, CpuPlatform())
        self.tables = self.staging.tables

    def slot(self, kind: int, one: Request, position: int) -> tuple[int, int, int]:
        column, offset = divmod(position, BLOCK)
        assert column in self.scheduler.table.columns(kind, one.row)
        return kind, int(self.tables[kind][one.row][column]), offset

    def erase(self, block_ids: list[list[int]]) -> None:
        table = self.scheduler.table
        erased = dict(zip(table.pools, block_ids, strict=True))
        for slot in [slot for slot in self.slots if slot[1] in erased[table.pool_of[slot[0]]]]:
            del self.slots[slot]

    def run(self, batch: Batch) -> None:
        if not batch:
            return
        inputs, _ = model_inputs(batch, self.scheduler.table, False)
        staged = self.staging.put(inputs.step, inputs.sampling, None, inputs.table_changes)
        self.tables = staged.tables.numpy()
        assert (self.tables == self.staging.tables).all()
        specs, pool_of = self.scheduler.table.specs, self.scheduler.table.pool_of
        tokens = [
            (kind, scheduled.request, position)
            for kind in range(len(specs))
            for scheduled in batch
            for position in range(scheduled.start, scheduled.end)
        ]
        for kind, one, position in tokens:
            slot = self.slot(kind, one, position)
            for other in range(len(specs)):  # kinds of one pool share tensors
                if pool_of[other] is pool_of[kind]:
                    self.slots.pop((other, *slot[1:]), None)
            self.slots[slot] = content(one, position)
        for kind, one, position in tokens:
            for seen in range(max(0, specs[kind].first_needed(position)), position + 1):
                assert self.slots[self.slot(kind, one, seen)] == content(one, seen)


def content(one: Request, position: int) -> tuple[int, ...]:
    """Return the rope's regime and all tokens up to a position. Every token in flight will be 7."""
    return one.rope_regime, *(7 if token == UNKNOWN else token for token in one.token_ids[: position + 1])


a_spec = st.just(FULL) | st.builds(WindowSpec, st.integers(1, 20)) | st.builds(ChunkSpec, st.integers(1, 20))
several_specs = st.lists(a_spec, min_size=1, max_size=3, unique=True)
pools_of_three = st.sampled_from([(0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1), (0, 1, 2)])
numbers = st.integers(0, 7)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 26), st.integers(0, 4), st.integers(1, 10), st.integers(0, 2)),
        st.tuples(st.just("step"), st.sets(numbers, max_size=1)),
        st.tuples(st.just("step"), st.just(set())),
        st.tuples(st.just("draft"), st.lists(st.sampled_from([7, 8]), max_size=20)),
        st.tuples(st.sampled_from(["abort", "expire"]), numbers),
        st.tuples(st.sampled_from(["fail", "retry", "sleep", "reset", "reset_running"])),
    ),
    min_size=10,
    max_size=60,
)  # fmt: skip


class Run:
    """A scheduler and its device, the steps in flight, and what each request has received."""

    def __init__(self, scheduler: Scheduler, overlapped: bool) -> None:
        self.scheduler = scheduler
        self.device = Device(scheduler)
        self.overlapped = overlapped
        self.in_flight: list[tuple[Batch, set[int]]] = []
        self.max_tokens: dict[str, int] = {}
        self.num_tokens: dict[str, int] = {}
        self.finish_reasons: dict[str, str] = {}

    def apply(self, number: int, operation: str, *details: Any) -> None:
        """Apply one operation of a plan; `number` makes its request's id and tokens unique."""
        scheduler = self.scheduler
        match operation, *details:
            case "add", shared, own, output, priority:
                self.add(str(number), [*range(shared), *[number] * own], output, priority)
            case "step", failing:
                self.step(failing)
            case "draft", tokens:
                self.draft(tokens)
                self.step()
            case "abort", which if scheduler.requests:
                name = self.pick(which).request_id
                scheduler.abort([name, "unknown"])
                self.finish_reasons[name] = "abort"
            case "expire", which if scheduler.requests:
                self.pick(which).deadline = 0
            case ("fail",):
                self.receive([scheduler.fail(one, "failed") for one, _ in by_request(self.schedule())])
            case ("retry",):
                if batch := self.schedule():
                    self.receive(scheduler.retry(batch, "out of memory"))
            case ("sleep",):
                scheduler.preempt_all()
                assert scheduler.reset_prefix_cache()
                self.device.slots.clear()
            case ("reset",):
                assert scheduler.reset_prefix_cache() == (not scheduler.running)
            case ("reset_running",):
                assert scheduler.reset_prefix_cache(reset_running_requests=True)

    def add(self, name: str, prompt: list[int], output: int, priority: int) -> None:
        self.scheduler.add(
            GenerationRequest(name, prompt, len(prompt), SamplingParams(), output, priority=priority)
        )
        self.max_tokens[name] = output

    def pick(self, which: int) -> Request:
        requests = sorted(self.scheduler.requests.values(), key=lambda one: one.queue_position)
        return requests[which % len(requests)]

    def draft(self, tokens: list[int]) -> None:
        """Collect all steps, and guess the next tokens of all requests; 7 is right. A stretched rope has no drafts."""
        while self.in_flight:
            self.collect()
        if self.scheduler.rope_regime is None:
            for one in self.scheduler.running:
                assert isinstance(one, GenerationRequest)
                one.drafts = tokens

    def step(self, failing: Collection[int] = ()) -> None:
        """Launch a step and collect the previous one; its sampled tokens at the indexes `failing` are errors."""
        scheduler = self.scheduler
        self.receive(scheduler.expire())
        batch = self.schedule()
        assert num_tokens(batch) <= scheduler.config.max_num_batched_tokens
        assert all(scheduled.num_tokens > 0 for scheduled in batch)
        assert len(scheduler.running) <= scheduler.config.max_num_seqs
        assert batch or self.in_flight or not scheduler.requests, "requests wait but none runs"
        self.device.run(batch)
        self.in_flight.append((batch, set(failing)))
        if len(self.in_flight) > self.overlapped:
            self.collect()

    def schedule(self) -> Batch:
        """Schedule a step, after the results of one with drafts."""
        while any(has_drafts(batch) for batch, _ in self.in_flight):
            self.collect()
            check_integrity(self.scheduler)
        return self.scheduler.schedule()

    def collect(self) -> None:
        batch, failing = self.in_flight.pop(0)
        results = [
            StepResult([7], error="failed" if index in failing else None)
            for index in range(len(sampled_part(batch)))
        ]
        self.receive(self.scheduler.update(batch, results))

    def receive(self, steps: list[RequestStep]) -> None:
        for step in steps:
            assert step.request_id not in self.finish_reasons
            self.num_tokens[step.request_id] = self.num_tokens.get(step.request_id, 0) + len(
                step.new_token_ids
            )
            if step.finish_reason:
                self.finish_reasons[step.request_id] = step.finish_reason


@example(  # a window passes a block before its last token is known
    [("add", 1, 0, 9, 0), *[("step", set())] * 7],
    10,
    1,
    1,
    False,
    [WindowSpec(1)],
    True,
    True,
    0,
    0,
    None,
    (0, 0, 0),
    "fcfs",
)
@example(  # a request is preempted while a step verifies its drafts, of which the first is wrong
    [("add", 1, 0, 9, 0), ("step", set()), ("draft", [8, 8]), ("sleep",)],
    10, 8, 1, True, [FULL], True, True, 0, 0, None, (0, 0, 0), "fcfs",
)  # fmt: skip
@given(
    operations, st.integers(10, 40), st.integers(1, 64), st.integers(1, 8), st.booleans(), several_specs,
    st.booleans(), st.booleans(), st.integers(0, 12), st.integers(0, 3), st.one_of(st.none(), st.integers(5, 30)),
    pools_of_three, st.sampled_from(get_args(SchedulingPolicy)),
)  # fmt: skip
def test_any_plan_leaks_no_block_and_ends_every_request(
    plan, num_blocks: int, budget: int, seats: int, chunked: bool, specs: list[CacheSpec], caching: bool,
    overlapped: bool, threshold: int, max_partial: int, rope_limit: int | None, pools: tuple[int, ...],
    policy: SchedulingPolicy,
) -> None:  # fmt: skip
    """Prompts share a prefix. Every token that is attended to was computed, and no request receives too many tokens."""
    scheduler = make(
        num_blocks, budget if chunked else max(budget, LONGEST), seats, chunked, tuple(specs), caching,
        pools[: len(specs)], policy, long_prefill_token_threshold=threshold, max_num_partial_prefills=max_partial,
    )  # fmt: skip
    if rope_limit is not None:
        scheduler.rope_regime = lambda request: int(len(request.token_ids) > rope_limit)
    run = Run(scheduler, overlapped)
    for number, operation in enumerate(plan):
        run.apply(number, *operation)
        check_integrity(scheduler)
    while scheduler.requests:
        run.step()
        check_integrity(scheduler)
    while run.in_flight:
        run.collect()
    state = scheduler.debug_state()
    assert (state.num_free_blocks, state.num_free_rows) == (state.num_blocks, seats)
    assert scheduler.reset_prefix_cache()
    check_integrity(scheduler)
    for name, max_tokens in run.max_tokens.items():
        received = run.num_tokens.get(name, 0)
        assert received == max_tokens if run.finish_reasons[name] == "length" else received <= max_tokens


def test_decode_runs_in_every_step_during_a_long_prefill() -> None:
    scheduler = make(num_blocks=40, budget=8, seats=4)
    scheduler.add(request("short", 2, 20))
    run(scheduler, scheduler.schedule())
    scheduler.add(request("long", 30, 1))
    for _ in range(4):
        batch = scheduler.schedule()
        assert {scheduled.request.request_id: scheduled.num_tokens for scheduled in batch}["short"] == 1
        run(scheduler, batch)


def test_newest_request_is_preempted_and_finishes_later() -> None:
    scheduler = make(num_blocks=10, budget=64, seats=4)
    scheduler.add(request("old", 20, 15))
    scheduler.add(request("new", 16, 20))
    num_preemptions = 0
    while scheduler.requests:
        run(scheduler, scheduler.schedule())
        num_preemptions += scheduler.stats().num_preemptions
        if "new" in scheduler.requests and "old" in scheduler.requests:
            assert scheduler.requests["old"].row is not None
    assert num_preemptions > 0


def test_prompt_runs_whole_without_chunked_prefill() -> None:
    scheduler = make(num_blocks=40, budget=LONGEST, seats=4, chunked=False, caching=False)
    scheduler.add(request("first", 25, 1))
    scheduler.add(request("second", 25, 1))
    batch = scheduler.schedule()
    assert [(scheduled.request.request_id, scheduled.num_tokens) for scheduled in batch] == [("first", 25)]


def test_block_that_a_preempted_request_did_not_fill_is_not_cached() -> None:
    """The request's token would have filled a block in the step in which an earlier request takes its blocks."""
    scheduler = make(num_blocks=7, budget=9, seats=2, specs=(FULL, WindowSpec(8)), policy="priority")
    last = request("last", 6, 20)
    last.priority = 1
    scheduler.add(last)
    run(scheduler, scheduler.schedule())
    scheduler.add(GenerationRequest("first", [50] * 30, 30, SamplingParams(), 1))
    run(scheduler, scheduler.schedule())
    batch = scheduler.schedule()
    assert [scheduled.request.request_id for scheduled in batch] == ["first"]
    assert [(0, digest) in scheduler.table.whole_pool for digest in last.hashes] == [True, False]


def test_failed_request_keeps_cached_blocks_of_others() -> None:
    scheduler = make(num_blocks=40, budget=64, seats=4)
    scheduler.add(request("computes", 13, 1))
    run(scheduler, scheduler.schedule())
    for name in ("fails", "fails too"):
        scheduler.add(request(name, 13, 2))
        [scheduled] = batch = scheduler.schedule()
        assert scheduled.request.num_cached == 12
        scheduler.update(batch, [StepResult(error="no")])


def test_blocks_of_a_failed_request_are_erased() -> None:
    scheduler = make(num_blocks=40, budget=64, seats=4)
    erased: list[int] = []
    scheduler.erase = lambda block_ids: erased.extend(block_ids[0])
    scheduler.add(request("fails", 13, 2))
    [scheduled] = batch = scheduler.schedule()
    columns = scheduler.table.columns(0, scheduled.row)
    blocks = [int(scheduler.table.ids[0, scheduled.row, column]) for column in columns]

    scheduler.update(batch, [StepResult(error="no")])

    assert len(blocks) == 4 and sorted(erased) == sorted(blocks)


@pytest.mark.parametrize("chunked", [False, True], ids=["window", "chunks"])
@pytest.mark.parametrize("size", [1, 3, 4, 5, 8, 9])
def test_window_holds_only_blocks_that_are_attended_to(size: int, chunked: bool) -> None:
    spec = ChunkSpec(size) if chunked else WindowSpec(size)
    scheduler = make(num_blocks=40, budget=7, seats=1, specs=(spec,))
    scheduler.add(request("long", 25, 15))
    while scheduler.requests:
        batch = scheduler.schedule()
        [scheduled] = batch
        first, last = max(0, scheduled.start + 1 - size), scheduled.end - 1
        if chunked:
            first = scheduled.start - scheduled.start % size
        assert scheduler.table.columns(0, scheduled.row) == range(first // BLOCK, last // BLOCK + 1)
        run(scheduler, batch)


def test_abort_ignores_unknown_ids() -> None:
    scheduler = make(num_blocks=10, budget=8, seats=2)
    scheduler.add(request("known", 3, 1))
    scheduler.abort(["unknown"])
    assert list(scheduler.requests) == ["known"]


def test_abort_ends_a_running_and_a_waiting_request() -> None:
    scheduler = make(num_blocks=10, budget=8, seats=1)
    for name in ("runs", "waits"):
        scheduler.add(request(name, 3, 5))
    run(scheduler, scheduler.schedule())

    scheduler.abort(["waits", "runs"])

    state = scheduler.debug_state()
    assert (state.running, state.waiting, state.num_used_blocks) == ((), (), 0)
    check_integrity(scheduler)


def test_next_deadline_is_the_earliest_of_waiting_and_running_requests() -> None:
    scheduler = make(num_blocks=10, budget=8, seats=1)
    assert scheduler.seconds_to_deadline() == math.inf
    now = time.monotonic()
    for name, deadline in (("runs", now + 2000), ("waits", now + 1000), ("endless", None)):
        one = request(name, 3, 2)
        one.deadline = deadline
        scheduler.add(one)
    scheduler.schedule()
    assert 0 < scheduler.seconds_to_deadline() <= 1000
    scheduler.requests["runs"].deadline = now
    assert scheduler.seconds_to_deadline() == 0
    scheduler.expire()
    assert sorted(scheduler.requests) == ["endless", "waits"]


def lengths(batch: Batch) -> dict[str, int]:
    return {scheduled.request.request_id: scheduled.num_tokens for scheduled in batch}


def test_long_prompt_takes_no_more_of_a_step_than_its_threshold() -> None:
    scheduler = make(num_blocks=40, budget=20, seats=4, long_prefill_token_threshold=8)
    for name, prompt in (("long", [1] * 20), ("short", [2] * 6), ("longer", [3] * 30)):
        scheduler.add(GenerationRequest(name, prompt, len(prompt), SamplingParams(), 5))
    steps = []
    while scheduler.requests:
        batch = scheduler.schedule()
        steps.append(lengths(batch))
        run(scheduler, batch)
    assert steps[:3] == [
        {"long": 8, "short": 6, "longer": 6},
        {"short": 1, "long": 8, "longer": 8},
        {"short": 1, "long": 4, "longer": 8},
    ]


def test_prompts_take_what_the_measured_time_of_a_token_allows() -> None:
    scheduler = make(num_blocks=60, budget=128, seats=4, caching=False, max_step_ms=32)
    for name in ("first", "second"):
        scheduler.add(request(name, 36, 4))
    batch = scheduler.schedule()
    assert lengths(batch) == {
        "first": 36,
        "second": 28,
    }  # as if a token took 1 ms, and twice as long without decodes
    run(scheduler, batch)
    scheduler.observe(batch, seconds=0.064 * 0.5)  # 0.5 ms a token, so 0.75 ms on average
    scheduler.add(request("third", 36, 4))
    assert lengths(scheduler.schedule()) == {"first": 1, "second": 8, "third": 33}


def test_decodes_and_a_part_of_a_prompt_run_however_long_they_take() -> None:
    scheduler = make(num_blocks=60, budget=64, seats=4, caching=False, max_step_ms=1)
    scheduler.add(request("decoding", 20, 4))
    batch = scheduler.schedule()
    run(scheduler, batch)
    scheduler.observe(batch, seconds=100.0)
    scheduler.add(request("prompt", 36, 4))
    assert lengths(scheduler.schedule()) == {"decoding": 1, "prompt": FEWEST}


def test_drafts_take_their_part_of_the_budget_beside_no_prompt() -> None:
    scheduler = make(num_blocks=60, budget=64, seats=4, caching=False, max_step_ms=1)
    one = request("drafted", 16, 24)
    scheduler.add(one)
    batch = scheduler.schedule()
    run(scheduler, batch)
    scheduler.observe(batch, seconds=100.0)
    one.drafts = [5] * (FEWEST + 4)
    assert num_tokens(scheduler.schedule()) == 1 + FEWEST + 4


def test_steps_of_decodes_change_no_limit_of_prompts() -> None:
    scheduler = make(num_blocks=60, budget=64, seats=4, caching=False, max_step_ms=64)
    scheduler.add(request("decoding", 8, 20))
    for _ in range(3):  # a prompt of few tokens, and decodes
        batch = scheduler.schedule()
        run(scheduler, batch)
        scheduler.observe(batch, seconds=10.0)
    scheduler.add(request("prompt", 36, 1))
    assert lengths(scheduler.schedule()) == {"decoding": 1, "prompt": FIRST - 1}


def test_threshold_cuts_no_prompt_without_chunked_prefill() -> None:
    scheduler = make(num_blocks=40, budget=LONGEST, seats=4, chunked=False, long_prefill_token_threshold=8)
    scheduler.add(request("long", 20, 1))
    assert lengths(scheduler.schedule()) == {"long": 20}


def test_number_of_partly_computed_prompts_is_limited() -> None:
    scheduler = make(
        num_blocks=40, budget=20, seats=4, long_prefill_token_threshold=6, max_num_partial_prefills=2
    )
    prompts = {"a": [1] * 14, "b": [2] * 16, "c": [3] * 14, "d": [4] * 4}
    for name, prompt in prompts.items():
        scheduler.add(GenerationRequest(name, prompt, len(prompt), SamplingParams(), 5))
    steps = []
    while scheduler.requests:
        batch = scheduler.schedule()
        steps.append(lengths(batch))
        run(scheduler, batch)
    assert steps[0] == {"a": 6, "b": 6}  # c would be a third
    assert steps[1] == {"a": 6, "b": 6}
    assert steps[2] == {"a": 2, "b": 4, "c": 6, "d": 4}  # a and b end, so that c may begin


def test_prompt_that_fits_whole_counts_as_no_partial_prefill() -> None:
    scheduler = make(
        num_blocks=40, budget=20, seats=4, long_prefill_token_threshold=6, max_num_partial_prefills=1
    )
    for name, prompt in (("long", [1] * 30), ("short", [2] * 5)):
        scheduler.add(GenerationRequest(name, prompt, len(prompt), SamplingParams(), 5))
    assert lengths(scheduler.schedule()) == {"long": 6, "short": 5}
