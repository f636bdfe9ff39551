"""The pools of adapters without a model: what they keep, in which order they read, and that every request ends."""

import random
from concurrent.futures import Future
from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine_server.config import SchedulerConfig
from engine_server.core.adapters import adapter_pool
from engine_server.core.adapters.adapter import Adapter
from engine_server.core.adapters.adapter_pool import AdapterPool
from engine_server.core.adapters.adapter_pools import AdapterPools
from engine_server.core.cache.block_pool import BlockPool
from engine_server.core.cache.block_table import BlockTable
from engine_server.core.scheduling.batch import sampled_part
from engine_server.core.scheduling.integrity import check_integrity
from engine_server.core.scheduling.request import GenerationRequest
from engine_server.core.scheduling.scheduler import Scheduler
from engine_server.core.scheduling.step_result import StepResult
from engine_server.core.span import Span
from engine_server.modeling.adapters.peft_folder import LowRankAdapter
from engine_server.modeling.cache.spec import FULL
from engine_server.requests.adapters import LoRARequest, PromptAdapterRequest
from engine_server.requests.sampling_params import SamplingParams


class Reader:
    """A thread whose work is done when a test wants it."""

    def __init__(self, *_: object) -> None:
        self.work: list[tuple[Future, tuple]] = []

    def submit(self, read, adapter: Adapter) -> Future:
        future: Future = Future()
        self.work.append((future, (read, adapter)))
        return future

    def finish(self, index: int = 0) -> None:
        future, (read, adapter) = self.work.pop(index)
        try:
            future.set_result(read(adapter))
        except Exception as error:
            future.set_exception(error)


class Pool(AdapterPool[LoRARequest, LowRankAdapter]):
    """A pool whose contents are the paths, with what is in each slot."""

    def __init__(self, slots: int, memory: int) -> None:
        self.contents: dict[int, str] = {}
        self.changed: set[str] = set()
        super().__init__(
            slots,
            memory,
            lambda named: LowRankAdapter(f"{named.path} {named.name in self.changed}", {}),
            lambda slot, adapter: self.contents.__setitem__(slot, adapter.digest.split()[0]),
        )

    @property
    def reader(self) -> Reader:
        assert isinstance(self._thread, Reader)
        return self._thread


@pytest.fixture(autouse=True)
def reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter_pool, "ThreadPoolExecutor", Reader)


def lora(number: int) -> LoRARequest:
    return LoRARequest(f"a{number}", number, f"/a/{number}")


@given(
    st.integers(1, 3),
    st.integers(0, 3),
    st.lists(st.integers(1, 6), min_size=1, max_size=25),
    st.integers(0, 999),
)
def test_every_request_runs_with_its_adapter_in_few_slots(
    slots: int, more: int, wanted: list[int], seed: int
) -> None:
    """Whenever reads end and requests finish, the first waiting request runs in the end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adapter_pool, "ThreadPoolExecutor", Reader)
        pool = Pool(slots, slots + more)
    chance = random.Random(seed)
    waiting = [pool.open(lora(number)) for number in wanted]
    running: list[Adapter] = []
    for _ in range(20 * len(wanted)):
        pool.read_next(waiting)
        if pool.reader.work and chance.random() < 0.7:
            pool.reader.finish(chance.randrange(len(pool.reader.work)))
        if waiting and pool.can_run(waiting[0]):
            running.append(waiting.pop(0))
            pool.enter(running[-1], first=True)
        for adapter in running:
            assert adapter.slot is not None
            assert pool.contents[adapter.slot] == adapter.named.path
        assert len(pool._held()) <= slots + more
        if running and chance.random() < 0.5:
            done = running.pop(chance.randrange(len(running)))
            pool.leave(done)
            pool.close(done, started=True)
        if not (waiting or running):
            break
    while waiting or running:
        for done in running:
            pool.leave(done)
            pool.close(done, started=True)
        running = []
        pool.read_next(waiting)
        while pool.reader.work:
            pool.reader.finish()
        assert waiting, "all have run"
        assert pool.can_run(waiting[0]), "the first one waits forever"
        running.append(waiting.pop(0))
        pool.enter(running[-1], first=True)
        if not waiting:
            break


def test_an_adapter_keeps_its_content_while_a_started_request_needs_it() -> None:
    pool = Pool(1, 1)
    first, second = pool.open(lora(1)), pool.open(lora(2))
    pool.read_next([first, second])
    pool.reader.finish()
    assert pool.can_run(first) and not pool.can_run(second)
    pool.enter(first, first=True)
    pool.leave(first)  # preempted
    pool.read_next([first, second])
    assert not pool.reader.work and first.content is not None
    pool.enter(first, first=False)
    pool.leave(first)
    pool.close(first, started=True)
    pool.read_next([second])
    pool.reader.finish()
    assert pool.can_run(second) and pool.ids == [2]


def test_changed_files_are_not_taken_for_a_waiting_request_that_knew_others() -> None:
    pool = Pool(1, 1)
    first = pool.open(lora(1))
    pool.read_next([first])
    pool.reader.finish()
    other = pool.add(lora(2))
    pool.reader.finish()
    pool.keep(other)
    assert first.content is None and pool.ids == [2]
    pool.changed.add("a1")
    pool.read_next([first])
    pool.reader.finish()
    assert first.error is not None and "have changed" in first.error
    pool.close(first, started=False)
    again = pool.open(lora(1))
    pool.read_next([again])
    pool.reader.finish()
    assert pool.can_run(again)


def test_an_adapter_is_checked_even_if_memory_has_no_room() -> None:
    pool = Pool(1, 1)
    used = pool.open(lora(1))
    pool.read_next([used])
    pool.reader.finish()
    pool.enter(used, first=True)
    checked = pool.add(lora(2))
    pool.reader.finish()
    assert checked.error is None
    pool.keep(checked)
    assert pool.ids == [1]


class Named(NamedTuple):
    """The adapters of a request, by number; 0: none."""

    lora: int
    prompt: int
    priority: int


@given(
    st.integers(1, 2),
    st.integers(0, 1),
    st.integers(1, 2),
    st.lists(
        st.builds(Named, st.integers(0, 3), st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=12
    ),
    st.integers(0, 999),
)
def test_every_request_ends_whatever_adapters_of_both_kinds_it_names(
    slots: int, more: int, prompts: int, wanted: list[Named], seed: int
) -> None:
    """Requests of different priorities arrive, are preempted and end in any order, with few places of each kind."""
    chance = random.Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adapter_pool, "ThreadPoolExecutor", Reader)
        loras = Pool(slots, slots + more)
        pools = AdapterPools(loras, prompt_pool(prompts))
    table = BlockTable([BlockPool(60)], 4, 32, 4, [FULL])
    config = SchedulerConfig(
        max_num_batched_tokens=16, max_num_seqs=4, enable_chunked_prefill=True, policy="priority"
    )
    scheduler = Scheduler(config, table, [], True, lambda block_ids: None, adapters=pools)
    arrivals = list(enumerate(wanted))
    for turn in range(1000):
        if arrivals and chance.random() < 0.5:
            number, named = arrivals.pop(0)
            scheduler.add(request(pools, str(number), named))
        scheduler.read_adapters()
        for reader in (pools.lora._thread, pools.prompt._thread):
            if reader.work and chance.random() < 0.5:
                reader.finish(chance.randrange(len(reader.work)))
        if turn < 100 and chance.random() < 0.2:
            scheduler.preempt_all()
        batch = scheduler.schedule()
        for scheduled in batch:
            adapters = scheduled.request.adapters
            assert adapters.lora is None or loras.contents[adapters.slot] == adapters.lora.named.path
            assert adapters.prompt is None or adapters.prompt.content is not None
        scheduler.update(batch, [StepResult([7])] * len(sampled_part(batch)))
        check_integrity(scheduler)
        if not (arrivals or scheduler.requests):
            return
    pytest.fail("a request waits forever")


def prompt_pool(count: int) -> AdapterPool[PromptAdapterRequest, Span]:
    """Return a pool whose contents have the paths as their digests."""
    return AdapterPool(
        count, count, lambda named: Span.of(0, torch.zeros(4, 1), named.path), lambda slot, adapter: None
    )


def request(pools: AdapterPools, name: str, named: Named) -> GenerationRequest:
    made = GenerationRequest(name, [3] * 9, 9, SamplingParams(), 5, num_virtual=4 if named.prompt else 0)
    made.priority = named.priority
    made.adapters = pools.open(
        lora(named.lora) if named.lora else None,
        PromptAdapterRequest("p", named.prompt, f"/p/{named.prompt}", 4) if named.prompt else None,
    )
    return made
