"""States of recurrent layers, one for each row, beside blocks of the whole context.

A unit is what a recurrence keeps of all tokens before a point. Each step replaces its row's state by the next one, and
leaves it behind at the end of a block.
"""

import random
from dataclasses import dataclass, field

import pytest
import torch
from random_requests import RandomRequests
from scheduling import BLOCK, make, run

from engine_server.core.scheduling.batch import Batch, by_request
from engine_server.core.scheduling.integrity import check_integrity
from engine_server.core.scheduling.request import UNKNOWN, GenerationRequest, Request
from engine_server.core.scheduling.scheduler import Scheduler
from engine_server.modeling.cache.layout import lay_out
from engine_server.modeling.cache.spec import FULL, LayerShape, StateSpec
from engine_server.requests.messages import RequestStep
from engine_server.requests.sampling_params import SamplingParams

BYTES = 256
SPECS, STATE = (FULL, StateSpec(BYTES)), 1


@dataclass
class Recurrence(RandomRequests):
    """A fake model whose state is the tokens that it has read, and which asserts that each step continues its row's."""

    states: dict[int, list[int]] = field(default_factory=dict)
    preemptions: int = 0
    hits: int = 0
    lengths: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.scheduler.erase = self.erase

    def erase(self, block_ids: list[list[int]]) -> None:
        for state in block_ids[STATE]:
            self.states.pop(state, None)

    def computed(self, batch: Batch) -> None:
        ids, new = self.scheduler.table.ids[STATE], {}
        # Rows by the states that they read, and those that they store to.
        read: dict[int, set[int]] = {}
        stored: dict[int, set[int]] = {}
        for request, [part] in by_request(batch):
            tokens = [7 if token == UNKNOWN else token for token in request.token_ids]
            if part.start:
                source = int(ids[part.row, (part.start - 1) // BLOCK])
                assert self.states[source] == tokens[: part.start]
                read.setdefault(source, set()).add(part.row)
            state = int(ids[part.row, (part.end - 1) // BLOCK])
            assert state not in new, "two rows store to one state"
            new[state] = tokens[: part.end]
            stored[state] = {part.row}
        assert all(read.get(state, rows) == rows for state, rows in stored.items()), (
            "a row reads what another stores"
        )
        self.states |= new
        stats = self.scheduler.stats()
        self.preemptions += stats.num_preemptions
        self.hits += stats.prefix_cache_hits

    def received(self, steps: list[RequestStep]) -> None:
        for step in steps:
            self.lengths[step.request_id] = self.lengths.get(step.request_id, 0) + len(step.new_token_ids)


def prompt(name: str, length: int, output: int = 1) -> GenerationRequest:
    return GenerationRequest(name, list(range(length)), length, SamplingParams(), output)


def held(scheduler: Scheduler, request: Request) -> list[int]:
    """Return the columns of a running request's states."""
    assert request.row is not None
    columns = scheduler.table.columns(STATE, request.row)
    return [column for column in columns if scheduler.table.ids[STATE, request.row, column] >= 0]


def finish(scheduler: Scheduler, request: GenerationRequest) -> int:
    """Run a request alone to its end, and return the number of its tokens that were cached."""
    scheduler.add(request)
    while scheduler.requests:
        run(scheduler, scheduler.schedule())
        check_integrity(scheduler)
    return request.num_cached


@pytest.mark.parametrize("overlapped", [False, True])
@pytest.mark.parametrize("budget", [4, 11, 32])
@pytest.mark.parametrize("num_blocks", [12, 40])
def test_each_step_continues_the_state_of_its_row(num_blocks: int, budget: int, overlapped: bool) -> None:
    scheduler = make(num_blocks, budget, seats=5, specs=SPECS, pools=(0, 1))
    recurrence = Recurrence(scheduler, random.Random(budget), overlapped, drafts=False)
    recurrence.run()
    assert recurrence.hits and recurrence.preemptions
    assert scheduler.reset_prefix_cache()
    check_integrity(scheduler)


def test_row_has_one_state_and_two_in_the_step_that_begins_a_block() -> None:
    scheduler = make(num_blocks=40, budget=6, seats=1, specs=SPECS, pools=(0, 1))
    request = prompt("only", 10, output=7)
    scheduler.add(request)
    columns = []
    while scheduler.requests:
        batch = scheduler.schedule()
        columns.append((batch[0].end, held(scheduler, request)))
        run(scheduler, batch)
    assert columns == [
        (4, [0]),  # of the 6 tokens that the step has room for, those of whole blocks
        (10, [0, 2]),
        (11, [2]),
        (12, [2]),
        (13, [2, 3]),
        (14, [3]),
        (15, [3]),
        (16, [3]),
    ]


def test_prefix_is_cached_up_to_a_state_that_was_left_at_the_end_of_a_block() -> None:
    scheduler = make(num_blocks=40, budget=8, seats=1, specs=SPECS, pools=(0, 1))
    assert finish(scheduler, prompt("first", 19)) == 0
    # Cut at 8 tokens, the last end of a block that is 8 tokens or more before the end; 16 was the latest one.
    assert finish(scheduler, prompt("longer", 23)) == 16
    assert finish(scheduler, prompt("shorter", 14)) == 8
    assert finish(scheduler, prompt("shortest", 7)) == 0


def test_state_that_has_been_free_for_longest_is_evicted_first() -> None:
    scheduler = make(num_blocks=40, budget=8, seats=1, specs=SPECS, pools=(0, 1))
    finish(scheduler, prompt("first", 19))
    pool = scheduler.table.pools[STATE]
    assert pool.num_free - len(pool.blank_blocks) == 2
    pool.free(pool.allocate(len(pool.blank_blocks) + 1))  # the state after 8 tokens
    assert finish(scheduler, prompt("shorter", 14)) == 0
    assert finish(scheduler, prompt("longer", 23)) == 16


def test_request_waits_for_a_state_and_takes_no_blocks_meanwhile() -> None:
    scheduler = make(num_blocks=40, budget=8, seats=2, specs=SPECS, pools=(0, 1))
    blocks, states = scheduler.table.pools
    taken = states.allocate(states.num_free)
    scheduler.add(prompt("waits", 5))
    assert not scheduler.schedule()
    assert blocks.num_free == blocks.num_blocks
    states.free(taken)
    run(scheduler, scheduler.schedule())
    assert not scheduler.requests


@pytest.mark.parametrize("end", ["abort", "preempt"])
def test_states_are_freed_with_the_blocks(end: str) -> None:
    scheduler = make(num_blocks=40, budget=8, seats=2, specs=SPECS, pools=(0, 1))
    scheduler.add(prompt("ends", 19))
    for _ in range(2):
        run(scheduler, scheduler.schedule())
    if end == "preempt":
        scheduler.preempt_all()
    scheduler.abort(["ends"])
    assert [pool.num_free for pool in scheduler.table.pools] == [
        pool.num_blocks for pool in scheduler.table.pools
    ]
    check_integrity(scheduler)
    # After two steps of 8 tokens; the last one's state is left behind as the request ends.
    assert finish(scheduler, prompt("next", 23)) == 16


def test_blocks_of_a_failed_step_are_forgotten_although_no_state_was_left_in_it() -> None:
    scheduler = make(num_blocks=40, budget=8, seats=2, specs=SPECS, pools=(0, 1))
    request = prompt("fails", 19)
    scheduler.add(request)
    run(scheduler, scheduler.schedule())
    scheduler.retry(scheduler.schedule(), "out of memory")
    assert [(0, digest) in scheduler.table.whole_pool for digest in request.hashes] == [True] * 2 + [
        False
    ] * 2
    check_integrity(scheduler)


def test_pool_has_the_states_of_all_rows_and_some_for_cached_prefixes() -> None:
    scheduler = make(num_blocks=40, budget=8, seats=3, specs=SPECS, pools=(0, 1))
    assert [pool.num_blocks for pool in scheduler.table.pools] == [40, 2 * 3 + 40 // 4]


def test_states_have_a_pool_of_their_own_and_take_no_bytes_for_another_token() -> None:
    layers = [LayerShape(2, 8, 8), LayerShape(2, 8, 8, StateSpec(BYTES))] * 2
    layout = lay_out(layers, longest=64)
    assert layout.specs == [FULL, StateSpec(BYTES)]
    assert layout.pools == [0, 1]
    assert layout.tensors == [0, 1, 2, 3]
    assert layout.unit_bytes(16, torch.bfloat16) == [2 * 16 * 2 * 16 * 2, 2 * BYTES]
    assert layout.token_bytes(torch.bfloat16) == 2 * 2 * 16 * 2
