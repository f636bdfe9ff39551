"""The scheduler and the block pool alone: whatever comes, in whatever order, nothing leaks and everyone ends."""

import pytest
from blocks import check_blocks
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine_server.config import SchedulerConfig
from engine_server.core.cache.block_pool import BlockPool, BlockTable
from engine_server.core.scheduling.batch import Batch, sampled_part
from engine_server.core.scheduling.request import UNKNOWN, GenerationRequest, Request
from engine_server.core.scheduling.scheduler import Scheduler
from engine_server.core.scheduling.step_result import StepResult
from engine_server.requests.messages import RequestStep
from engine_server.requests.sampling_params import SamplingParams

BLOCK = 4
LONGEST = 40  # prompt and output together
EOS = 99


def make(
    num_blocks: int,
    budget: int,
    seats: int,
    chunked: bool = True,
    windows: tuple[int | None, ...] = (None,),
    caching: bool = True,
) -> Scheduler:
    table = BlockTable(BlockPool(num_blocks * len(windows)), seats, LONGEST, BLOCK, windows)
    config = SchedulerConfig(
        max_num_batched_tokens=budget, max_num_seqs=seats, enable_chunked_prefill=chunked
    )
    return Scheduler(config, table, [EOS], caching, lambda block_ids: None)


def request(name: str, prompt: int, output: int) -> Request:
    return GenerationRequest(name, list(range(prompt)), prompt, SamplingParams(max_tokens=output), output)


class Device:
    """What a model would do to the cache: write this step's tokens, then read all that each of them sees.

    A slot's content is the tokens up to it, so that what is read is right only if each of them was computed.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.slots: dict[tuple[int, int, int], tuple[int, ...]] = {}
        scheduler.erase = self.erase

    def slot(self, kind: int, one: Request, position: int) -> tuple[int, int, int]:
        place, offset = divmod(position, BLOCK)
        held = self.scheduler.table._held[kind][one.row]
        assert place in held
        return kind, int(self.scheduler.table.ids[kind, one.row, place]), offset

    def erase(self, block_ids: list[int]) -> None:
        for slot in [slot for slot in self.slots if slot[1] in block_ids]:
            del self.slots[slot]

    def run(self, batch: Batch) -> None:
        windows = self.scheduler.table.windows
        tokens = [
            (kind, one, position)
            for kind in range(len(windows))
            for one, _, start, count, _ in batch
            for position in range(start, start + count)
        ]
        for kind, one, position in tokens:
            slot = self.slot(kind, one, position)
            for other in range(len(windows)):  # kinds share tensors
                self.slots.pop((other, *slot[1:]), None)
            self.slots[slot] = content(one, position)
        for kind, one, position in tokens:
            window = windows[kind]
            for seen in range(0 if window is None else max(0, position + 1 - window), position + 1):
                assert self.slots[self.slot(kind, one, seen)] == content(one, seen)


def content(one: Request, position: int) -> tuple[int, ...]:
    """All tokens up to a position. Every one that is on its way is going to be 7."""
    return tuple(7 if token == UNKNOWN else token for token in one.token_ids[: position + 1])


def check(scheduler: Scheduler) -> None:
    check_blocks(scheduler.table)
    assert len({one.row for one in scheduler.running}) == len(scheduler.running)
    assert sorted(scheduler.requests) == sorted(
        one.request_id for one in [*scheduler.running, *scheduler.waiting]
    )
    assert [one.queue_position for one in scheduler.waiting] == sorted(
        one.queue_position for one in scheduler.waiting
    )
    assert all((one.row is None) == (one in scheduler.waiting) for one in scheduler.requests.values())


def run(scheduler: Scheduler, batch: Batch) -> list[RequestStep]:
    return scheduler.update(batch, [StepResult([7])] * len(sampled_part(batch)))


several_windows = st.lists(st.one_of(st.none(), st.integers(1, 20)), min_size=1, max_size=3, unique=True)
numbers = st.integers(0, 7)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 26), st.integers(0, 4), st.integers(1, 10), st.integers(0, 2)),
        st.tuples(st.just("step"), st.sets(numbers, max_size=1)),
        st.tuples(st.just("step"), st.just(set())),
        st.tuples(st.sampled_from(["abort", "expire"]), numbers),
        st.tuples(st.sampled_from(["crash", "reset"])),
    ),
    min_size=10,
    max_size=60,
)  # fmt: skip


@example(  # a window passes a block before its last token is known
    [("add", 1, 0, 9, 0), *[("step", set())] * 7], 10, 1, 1, False, [1], True, True
)
@settings(max_examples=100, deadline=None)
@given(
    operations, st.integers(10, 40), st.integers(1, 64), st.integers(1, 8), st.booleans(), several_windows,
    st.booleans(), st.booleans(),
)  # fmt: skip
def test_nothing_leaks_and_everyone_ends(
    plan, num_blocks: int, budget: int, seats: int, chunked: bool, windows: list[int | None], caching: bool,
    overlapped: bool,
) -> None:  # fmt: skip
    """All prompts begin alike. Whatever is read was computed, and every request has an end."""
    budget = budget if chunked else max(budget, LONGEST)
    scheduler = make(num_blocks, budget, seats, chunked, tuple(windows), caching)
    device = Device(scheduler)
    expected: dict[str, int] = {}
    tokens: dict[str, int] = {}
    ends: dict[str, str] = {}
    launched: list[tuple[Batch, set[int]]] = []

    def tell(steps: list[RequestStep]) -> None:
        for step in steps:
            assert step.request_id not in ends
            tokens[step.request_id] = tokens.get(step.request_id, 0) + len(step.new_token_ids)
            if step.finish_reason:
                ends[step.request_id] = step.finish_reason

    def step(failing: set[int]) -> None:
        tell(scheduler.expire())
        batch = scheduler.schedule()
        assert sum(scheduled.num_tokens for scheduled in batch) <= budget
        assert all(scheduled.num_tokens > 0 for scheduled in batch)
        assert len(scheduler.running) <= seats
        assert batch or launched or not scheduler.requests, "requests wait, and nobody runs"
        device.run(batch)
        launched.append((batch, failing))
        if len(launched) > overlapped:
            finish()

    def finish() -> None:
        batch, failing = launched.pop(0)
        results = [
            StepResult([7], error="no" if index in failing else None)
            for index in range(len(sampled_part(batch)))
        ]
        tell(scheduler.update(batch, results))

    for number, (operation, *details) in enumerate(plan):
        match operation, *details:
            case "add", shared, own, output, priority:
                prompt = list(range(shared)) + [number] * own
                scheduler.add(
                    GenerationRequest(
                        str(number), prompt, len(prompt), SamplingParams(), output, priority=priority
                    )
                )
                expected[str(number)] = output
            case "step", failing:
                step(failing)
            case (("abort" | "expire"), which) if scheduler.requests:
                one = sorted(scheduler.requests.values(), key=lambda one: one.queue_position)[
                    which % len(scheduler.requests)
                ]
                if operation == "abort":
                    scheduler.abort([one.request_id, "nobody"])
                    ends[one.request_id] = "abort"
                else:
                    one.deadline = 0
            case ("crash",):
                tell([scheduler.fail(scheduled.request, "no") for scheduled in scheduler.schedule()])
            case ("reset",):
                assert scheduler.reset_prefix_cache() == (not scheduler.running)
        check(scheduler)
    while scheduler.requests:
        step(set())
        check(scheduler)
    while launched:
        finish()
    assert scheduler.table.pool.num_free == num_blocks * len(windows)
    assert len(scheduler.table._free_rows) == seats
    assert scheduler.reset_prefix_cache()
    check(scheduler)
    for name, output in expected.items():
        assert tokens.get(name, 0) == output if ends[name] == "length" else tokens.get(name, 0) <= output


def test_decodes_are_never_stalled_by_a_long_prompt() -> None:
    scheduler = make(num_blocks=40, budget=8, seats=4)
    scheduler.add(request("short", 2, 20))
    run(scheduler, scheduler.schedule())
    scheduler.add(request("long", 30, 1))
    for _ in range(4):
        batch = scheduler.schedule()
        assert {scheduled.request.request_id: scheduled.num_tokens for scheduled in batch}["short"] == 1
        run(scheduler, batch)


def test_the_newest_gives_way_and_comes_back() -> None:
    scheduler = make(num_blocks=10, budget=64, seats=4)
    scheduler.add(request("old", 20, 15))
    scheduler.add(request("new", 16, 20))
    gone = 0
    while scheduler.requests:
        run(scheduler, scheduler.schedule())
        gone += scheduler.stats().num_preemptions
        if "new" in scheduler.requests and "old" in scheduler.requests:
            assert scheduler.requests["old"].row is not None
    assert gone > 0


def test_without_chunks_a_prompt_runs_whole() -> None:
    scheduler = make(num_blocks=40, budget=LONGEST, seats=4, chunked=False, caching=False)
    scheduler.add(request("first", 25, 1))
    scheduler.add(request("second", 25, 1))
    batch = scheduler.schedule()
    assert [(scheduled.request.request_id, scheduled.num_tokens) for scheduled in batch] == [("first", 25)]


def test_what_a_preempted_request_had_before_it_is_not_found() -> None:
    """Its token was to fill a block in this very step, when one that goes first took its blocks."""
    scheduler = make(num_blocks=7, budget=9, seats=2, windows=(None, 8))
    last = request("last", 6, 20)
    last.priority = 1
    scheduler.add(last)
    run(scheduler, scheduler.schedule())
    scheduler.add(GenerationRequest("first", [50] * 30, 30, SamplingParams(), 1))
    run(scheduler, scheduler.schedule())
    batch = scheduler.schedule()
    assert [scheduled.request.request_id for scheduled in batch] == ["first"]
    assert [(0, digest) in scheduler.table.pool for digest in last.hashes] == [True, False]


def test_a_failure_takes_no_block_of_others_along() -> None:
    scheduler = make(num_blocks=40, budget=64, seats=4)
    scheduler.add(request("computes", 13, 1))
    run(scheduler, scheduler.schedule())
    for name in ("fails", "fails too"):
        scheduler.add(request(name, 13, 2))
        [scheduled] = batch = scheduler.schedule()
        assert scheduled.request.num_cached == 12
        scheduler.update(batch, [StepResult(error="no")])


@pytest.mark.parametrize("window", [1, 3, 4, 5, 8, 9])
def test_a_window_holds_what_it_needs_and_no_more(window: int) -> None:
    scheduler = make(num_blocks=40, budget=7, seats=1, windows=(window,))
    scheduler.add(request("long", 25, 15))
    while scheduler.requests:
        batch = scheduler.schedule()
        [scheduled] = batch
        one = scheduled.request
        first, last = max(0, scheduled.start + 1 - window), scheduled.end - 1
        assert scheduler.table._held[0][one.row] == range(first // BLOCK, last // BLOCK + 1)
        run(scheduler, batch)


def test_an_unknown_id_is_no_error() -> None:
    make(num_blocks=10, budget=8, seats=2).abort(["nobody"])
