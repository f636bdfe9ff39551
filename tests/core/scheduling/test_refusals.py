"""Waiting prompts that lack memory: when they are looked up in the prefix cache again."""

import pytest
from scheduling import BLOCK, EOS, LONGEST, make, request, run

from engine_server.config import SchedulerConfig
from engine_server.core.cache.block_pool import BlockPool, Key
from engine_server.core.cache.block_table import BlockTable
from engine_server.core.scheduling.request import GenerationRequest
from engine_server.core.scheduling.scheduler import Scheduler
from engine_server.modeling.cache.spec import FULL
from engine_server.requests.sampling_params import SamplingParams


class CountingPool(BlockPool):
    """A pool that counts lookups of blocks."""

    lookups = 0

    def __contains__(self, key: Key) -> bool:
        self.lookups += 1
        return super().__contains__(key)

    def hold(self, key: Key) -> int:
        self.lookups += 1
        return super().hold(key)


def refused_prompt(chunked: bool, budget: int) -> tuple[Scheduler, CountingPool]:
    """Return a scheduler in which a cached prompt of 36 tokens waits because another request runs."""
    pool = CountingPool(10)
    config = SchedulerConfig(max_num_batched_tokens=budget, max_num_seqs=4, enable_chunked_prefill=chunked)
    table = BlockTable([pool], 4, LONGEST, BLOCK, [FULL])
    scheduler = Scheduler(config, table, [EOS], True, lambda block_ids: None)
    scheduler.add(request("cached", 36, 1))
    run(scheduler, scheduler.schedule())
    scheduler.add(GenerationRequest("runs", [50] * 8, 8, SamplingParams(), 8))
    run(scheduler, scheduler.schedule())
    scheduler.add(request("again", 40, 1))
    run(scheduler, scheduler.schedule())
    assert [one.request_id for one in scheduler.waiting] == ["again"]
    return scheduler, pool


@pytest.mark.parametrize(("chunked", "budget"), [(True, 64), (False, LONGEST)])
def test_refused_prompt_is_not_looked_up_again_before_it_may_fit(chunked: bool, budget: int) -> None:
    scheduler, pool = refused_prompt(chunked, budget)
    while "runs" in scheduler.requests:
        pool.lookups = 0
        run(scheduler, scheduler.schedule())
        assert pool.lookups == 0
    batch = scheduler.schedule()
    assert [scheduled.request.request_id for scheduled in batch] == ["again"]


def test_refused_prompt_is_looked_up_again_after_another_with_its_beginning_was_admitted() -> None:
    scheduler = make(num_blocks=12, budget=64, seats=4, policy="priority")
    scheduler.add(GenerationRequest("runs", [50] * 16, 16, SamplingParams(), 4))
    run(scheduler, scheduler.schedule())
    scheduler.add(request("refused", 32, 1))
    run(scheduler, scheduler.schedule())
    assert scheduler.debug_state().waiting == ("refused",)
    urgent = request("urgent", 20, 8)
    urgent.priority = -1
    scheduler.add(urgent)
    while "runs" in scheduler.requests:
        run(scheduler, scheduler.schedule())

    batch = scheduler.schedule()

    # Without the blocks of the shared beginning it would not fit.
    assert [scheduled.request.request_id for scheduled in batch] == ["urgent", "refused"]
