"""Decode steps between block boundaries: the scheduler takes a request's next token and looks at nothing else."""

import pytest
from scheduling import BLOCK, LONGEST, make, request, run

from engine_server.core.cache.block_table import BlockTable
from engine_server.core.scheduling.batch import Batch


def names(batch: Batch) -> list[str]:
    return [scheduled.request.request_id for scheduled in batch]


@pytest.mark.parametrize("caching", [True, False])
def test_blocks_of_a_decoding_request_are_looked_at_only_where_one_begins_or_fills(
    monkeypatch: pytest.MonkeyPatch, caching: bool
) -> None:
    scheduler = make(num_blocks=40, budget=64, seats=2, caching=caching)
    scheduler.add(request("decodes", BLOCK, LONGEST - BLOCK))
    run(scheduler, scheduler.schedule())
    grown: list[int] = []
    grow = BlockTable.grow

    def recorded(table: BlockTable, row: int, computed: int, num_tokens: int, total: int) -> bool:
        grown.append(computed)
        return grow(table, row, computed, num_tokens, total)

    monkeypatch.setattr(BlockTable, "grow", recorded)

    while scheduler.requests:
        run(scheduler, scheduler.schedule())

    begins = {computed for computed in grown if computed % BLOCK == 0}
    fills = {computed for computed in grown if computed % BLOCK == BLOCK - 1}
    assert begins == set(range(BLOCK, LONGEST - 1, BLOCK))
    assert set(grown) - begins - fills <= {LONGEST - 2}  # the last token may end the request


def test_filled_block_is_cached_in_the_step_that_fills_it() -> None:
    scheduler = make(num_blocks=40, budget=64, seats=2)
    decoding = request("decodes", 2 * BLOCK - 3, 20)
    scheduler.add(decoding)
    while decoding.computed < 2 * BLOCK:
        assert scheduler.table.num_published(decoding.row or 0) == decoding.computed // BLOCK
        run(scheduler, scheduler.schedule())
    assert scheduler.table.num_published(decoding.row or 0) == 2


def test_request_takes_its_place_among_decodes_once_its_prompt_is_computed() -> None:
    scheduler = make(num_blocks=40, budget=8, seats=4, policy="priority")
    scheduler.add(request("decodes", 2, 20))
    run(scheduler, scheduler.schedule())
    first = request("first", 12, 5)
    first.priority = -1
    scheduler.add(first)
    batch = scheduler.schedule()
    assert names(batch) == ["decodes", "first"]
    run(scheduler, batch)
    batch = scheduler.schedule()
    assert names(batch) == ["decodes", "first"]
    run(scheduler, batch)
    assert names(scheduler.schedule()) == ["first", "decodes"]


def test_preempted_request_computes_all_its_tokens_again() -> None:
    scheduler = make(num_blocks=40, budget=64, seats=2, caching=False)
    scheduler.add(request("decodes", 5, 20))
    run(scheduler, scheduler.schedule())
    scheduler.preempt_all()
    [scheduled] = scheduler.schedule()
    assert (scheduled.start, scheduled.num_tokens) == (0, 6)
