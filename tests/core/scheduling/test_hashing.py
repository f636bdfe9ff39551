"""How many blocks are hashed, and when."""

import pytest
from scheduling import BLOCK, make, request, run

from engine_server.core.scheduling import hashing
from engine_server.core.scheduling.block_hashes import STRETCH, Stretch
from engine_server.core.scheduling.request import Request
from engine_server.requests.messages import AddRequest
from engine_server.requests.sampling_params import SamplingParams
from engine_server.requests.token_bytes import pack


def recorded_hashes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that grows by the number of blocks whenever some are hashed."""
    counts: list[int] = []
    hashes = Stretch.hashes

    def counted(stretch: Stretch, block_size: int) -> list[bytes]:
        made = hashes(stretch, block_size)
        counts.append(len(made))
        return made

    monkeypatch.setattr(Stretch, "hashes", counted)
    return counts


def test_choices_of_one_prompt_hash_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed = recorded_hashes(monkeypatch)
    scheduler = make(num_blocks=40, budget=64, seats=5)
    message = AddRequest(["0", "1", "2", "3"], pack(range(32)), SamplingParams(), 2, 0.0)
    for one in Request.from_message(message):
        scheduler.add(one)
    batch = scheduler.schedule()
    assert [scheduled.num_tokens for scheduled in batch] == [32, 4, 4, 4]
    assert hashed == [32 // BLOCK - 1, 1]  # the last block is cached, but never found
    run(scheduler, batch)
    for name in ("cache_salt", "cache_scope"):
        other = request(name, 32, 1)
        setattr(other, name, "other")
        scheduler.add(other)
        batch = scheduler.schedule()
        assert batch[-1].num_tokens == 32
        run(scheduler, batch)


def test_long_prompt_is_hashed_in_slices_while_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "SLICE", STRETCH)
    hashed = recorded_hashes(monkeypatch)
    num_tokens = 4 * STRETCH * BLOCK + BLOCK
    scheduler = make(num_blocks=5 * STRETCH, budget=2 * num_tokens, seats=3, longest=2 * num_tokens)
    for name, length in (("stream", 3), ("long", num_tokens), ("short", 2 * BLOCK)):
        scheduler.add(request(name, length, 8))

    steps = []
    while "long" in [waiting.request_id for waiting in scheduler.waiting]:
        hashed.clear()
        batch = scheduler.schedule()
        steps.append([scheduled.request.request_id for scheduled in batch])
        assert sum(hashed) <= 2 * STRETCH + 3
        run(scheduler, batch)
    assert steps == [["stream", "short"], ["stream", "short"], ["stream", "short", "long"]]


def test_prompts_alone_are_hashed_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "SLICE", STRETCH)
    num_tokens = 4 * STRETCH * BLOCK
    scheduler = make(num_blocks=5 * STRETCH, budget=2 * num_tokens, seats=1, longest=2 * num_tokens)
    scheduler.add(request("long", num_tokens, 1))
    sizes = []
    while scheduler.has_work:
        batch = scheduler.schedule()
        sizes.append(len(batch))
        run(scheduler, batch)
    assert sizes == [0, 0, 1]


def test_hashes_of_a_known_beginning_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    num_tokens = 2 * STRETCH * BLOCK
    scheduler = make(num_blocks=8 * STRETCH, budget=9 * num_tokens, seats=1, longest=9 * num_tokens)
    for name, length in (("turn", num_tokens + 1), ("next turn", num_tokens + 2 * BLOCK + 1)):
        hashed = recorded_hashes(monkeypatch)
        scheduler.add(request(name, length, 1))
        run(scheduler, scheduler.schedule())
    assert sum(hashed) == 2
