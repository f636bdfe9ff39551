"""The pool of adapters without a model: what it keeps, in which order it reads, and that no request waits forever."""

import random
from concurrent.futures import Future
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_server.config import LoRAConfig
from engine_server.core.adapters import adapter_pool
from engine_server.core.adapters.adapter import Adapter
from engine_server.core.adapters.adapter_pool import AdapterPool
from engine_server.modeling.adapters.peft_folder import LowRankAdapter
from engine_server.requests.adapters import LoRARequest


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


class Pool(AdapterPool):
    """A pool whose contents are the paths, with what is in each slot."""

    def __init__(self, slots: int, memory: int) -> None:
        self.contents: dict[int, str] = {}
        self.changed: set[str] = set()
        super().__init__(
            LoRAConfig(max_loras=slots, max_lora_rank=8, max_cpu_loras=memory),
            lambda folder: LowRankAdapter(f"{folder} {folder.name in self.changed}", {}),
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
            assert pool.contents[adapter.slot] == str(Path(adapter.lora.lora_path))
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
    pool.changed.add("1")
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
