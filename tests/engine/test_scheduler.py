"""The scheduler and the block pool alone: whatever comes, in whatever order, nothing leaks and everyone ends."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_server.engine.config import SchedulerConfig
from engine_server.engine.core.block_pool import BlockPool, BlockTable
from engine_server.engine.core.request import Request
from engine_server.engine.core.scheduler import Batch, Sampled, Scheduler
from engine_server.engine.sampling_params import SamplingParams

BLOCK = 4
LONGEST = 40  # prompt and output together
EOS = 99


def make(
    num_blocks: int, budget: int, seats: int, chunked: bool = True, windows: tuple[int | None, ...] = (None,)
) -> Scheduler:
    table = BlockTable(BlockPool(num_blocks * len(windows)), seats, LONGEST, BLOCK, windows)
    return Scheduler(
        SchedulerConfig(max_num_batched_tokens=budget, max_num_seqs=seats, enable_chunked_prefill=chunked),
        table,
        [EOS],
    )


def request(name: str, prompt: int, output: int) -> Request:
    return Request(name, list(range(prompt)), prompt, SamplingParams(max_tokens=output), output)


def check(scheduler: Scheduler) -> None:
    """Every block is free or in exactly one running request's row, and rows hold what later tokens see."""
    table, pool = scheduler.table, scheduler.table.pool
    used = []
    for kind, window in enumerate(table.windows):
        for one in scheduler.running:
            held = table._held[kind][one.row]
            seen = range(0 if window is None else max(0, one.computed + 1 - window), one.computed)
            assert not seen or held.start <= seen.start // BLOCK <= (one.computed - 1) // BLOCK < held.stop
            used += table.ids[kind, one.row, held.start : held.stop].tolist()
    assert sorted([*used, *pool._free]) == list(range(pool.num_blocks))
    assert len({one.row for one in scheduler.running}) == len(scheduler.running)
    assert {id(one) for one in scheduler.requests.values()} == {
        id(one) for one in [*scheduler.running, *scheduler.waiting]
    }


def run(scheduler: Scheduler, batch: Batch) -> list:
    return scheduler.update(batch, [Sampled(7) for scheduled in batch if scheduled.samples])


arrivals = st.lists(
    st.tuples(st.integers(1, 30), st.integers(1, 10), st.integers(0, 20), st.one_of(st.none(), st.integers(0, 40))),
    max_size=200,
)  # fmt: skip


windows = st.lists(st.one_of(st.none(), st.integers(1, 20)), min_size=1, max_size=3, unique=True).map(tuple)


@settings(max_examples=60, deadline=None)
@given(arrivals, st.integers(10, 40), st.integers(1, 64), st.integers(1, 8), st.booleans(), windows)
def test_nothing_leaks_and_everyone_ends(
    plan, num_blocks: int, budget: int, seats: int, chunked: bool, windows: tuple[int | None, ...]
) -> None:
    budget = budget if chunked else max(budget, LONGEST)
    scheduler = make(num_blocks, budget, seats, chunked, windows)
    comes = {number: at for number, (_, _, at, _) in enumerate(plan)}
    leaves = {number: at for number, (_, _, _, at) in enumerate(plan) if at is not None}
    tokens: dict[str, int] = {}
    reasons: dict[str, str] = {}
    step = 0
    while scheduler.requests or any(at >= step for at in comes.values()):
        for number, (prompt, output, at, _) in enumerate(plan):
            if at == step:
                scheduler.add(request(str(number), prompt, output))
        scheduler.abort([str(number) for number, at in leaves.items() if at == step])
        batch = scheduler.schedule()
        assert sum(scheduled.num_tokens for scheduled in batch) <= budget
        assert all(scheduled.num_tokens > 0 for scheduled in batch)
        assert len(scheduler.running) <= seats
        assert batch or not scheduler.requests, "requests wait, and nobody runs"
        for outcome in run(scheduler, batch):
            tokens[outcome.request_id] = tokens.get(outcome.request_id, 0) + len(outcome.new_token_ids)
            if outcome.finish_reason:
                reasons[outcome.request_id] = outcome.finish_reason
        check(scheduler)
        step += 1
    assert scheduler.table.pool.num_free == num_blocks * len(windows)
    assert len(scheduler.table._free_rows) == seats
    for number, (_, output, at, left) in enumerate(plan):
        if left is None or left < at:
            assert (tokens[str(number)], reasons[str(number)]) == (output, "length")


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
    scheduler = make(num_blocks=40, budget=LONGEST, seats=4, chunked=False)
    scheduler.add(request("first", 25, 1))
    scheduler.add(request("second", 25, 1))
    batch = scheduler.schedule()
    assert [(scheduled.request.request_id, scheduled.num_tokens) for scheduled in batch] == [("first", 25)]


@pytest.mark.parametrize("window", [1, 3, 4, 5, 8, 9])
def test_a_window_holds_what_it_needs_and_no_more(window: int) -> None:
    scheduler = make(num_blocks=40, budget=7, seats=1, windows=(window,))
    scheduler.add(request("long", 25, 15))
    while scheduler.requests:
        batch = scheduler.schedule()
        [(one, count)] = batch
        first, last = max(0, one.computed + 1 - window), one.computed + count - 1
        assert scheduler.table._held[0][one.row] == range(first // BLOCK, last // BLOCK + 1)
        run(scheduler, batch)


def test_an_unknown_id_is_no_error() -> None:
    make(num_blocks=10, budget=8, seats=2).abort(["nobody"])
