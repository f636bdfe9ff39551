"""Pools of blocks by kind of attention: all or nothing over pools, hits and resets of all, and their sizes."""

from pathlib import Path

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scheduling import BLOCK, make, request, run

from engine_server import EngineArgs
from engine_server.config import EngineConfig
from engine_server.core.cache.block_pool import BlockPool
from engine_server.core.cache.block_table import BlockTable
from engine_server.core.scheduling.integrity import check_integrity
from engine_server.core.scheduling.request import GenerationRequest
from engine_server.core.scheduling.step_result import StepResult
from engine_server.modeling.cache.kv_cache import num_blocks, pool_sizes
from engine_server.modeling.cache.layout import Layout, lay_out
from engine_server.modeling.cache.ledger import MemoryLedger
from engine_server.modeling.cache.spec import FULL, ChunkSpec, LayerShape, WindowSpec
from engine_server.modeling.platform.cpu import CpuPlatform
from engine_server.requests.sampling_params import SamplingParams

KINDS = (FULL, WindowSpec(8))


@pytest.mark.parametrize("full", [0, 1])
def test_row_takes_no_blocks_where_one_pool_has_too_few(full: int) -> None:
    pools = [BlockPool(2 if pool == full else 10) for pool in range(2)]
    table = BlockTable(pools, 2, 40, BLOCK, KINDS)
    row = table.open([], 0)
    assert table.grow(row, 0, 8, 8)
    assert not table.grow(row, 8, 12, 12)
    assert [pool.num_free for pool in pools] == [8 * (pool != full) for pool in range(2)]
    assert table.usage == 1.0
    assert table.num_free == 0
    table.check_integrity()


@pytest.mark.parametrize("full", [0, 1])
def test_request_waits_for_the_pool_that_has_too_few_blocks(full: int) -> None:
    scheduler = make(num_blocks=20, budget=64, seats=8, specs=KINDS, pools=(0, 1))
    scheduler.add(GenerationRequest("runs", [50] * 8, 8, SamplingParams(), 4))
    run(scheduler, scheduler.schedule())
    pool = scheduler.table.pools[full]
    taken = pool.allocate(pool.num_free - 2)
    scheduler.add(request("waits", 9, 1))
    run(scheduler, scheduler.schedule())
    assert [one.request_id for one in scheduler.waiting] == ["waits"]
    assert scheduler.stats().kv_cache_usage == pool.usage
    pool.free(taken)
    run(scheduler, scheduler.schedule())
    assert "waits" not in scheduler.requests
    check_integrity(scheduler)


def test_prefix_is_cached_where_the_blocks_of_every_pool_are() -> None:
    """The whole context's blocks are of no use once the window's have been taken for others, and vice versa."""
    for taken, cached in ((None, 16), (0, 0), (1, 0)):
        scheduler = make(num_blocks=20, budget=64, seats=1, specs=KINDS, pools=(0, 1))
        scheduler.add(request("first", 17, 1))
        run(scheduler, scheduler.schedule())
        if taken is not None:
            pool = scheduler.table.pools[taken]
            pool.free(pool.allocate(pool.num_blocks))
        again = request("again", 17, 1)
        scheduler.add(again)
        run(scheduler, scheduler.schedule())
        assert again.num_cached == cached


def test_blocks_of_a_failed_request_are_erased_in_their_pools() -> None:
    scheduler = make(num_blocks=20, budget=64, seats=2, specs=KINDS, pools=(0, 1))
    scheduler.add(GenerationRequest("other", [50] * 17, 17, SamplingParams(), 1))
    run(scheduler, scheduler.schedule())  # so that the pools' next blocks differ
    erased: list[list[int]] = []
    scheduler.erase = erased.extend
    scheduler.add(request("fails", 13, 2))
    [scheduled] = scheduler.schedule()
    table = scheduler.table
    expected = [
        sorted(int(table.ids[kind, scheduled.row, column]) for column in table.columns(kind, scheduled.row))
        for kind in range(2)
    ]
    scheduler.fail(scheduled.request, "failed")
    assert [sorted(own) for own in erased] == expected


@pytest.mark.parametrize("held", [0, 1])
def test_prefix_cache_is_kept_whole_while_a_block_of_any_pool_is_held(held: int) -> None:
    pools = [BlockPool(4), BlockPool(4)]
    table = BlockTable(pools, 2, 40, BLOCK, KINDS)
    for kind, pool in enumerate(pools):
        [block_id] = pool.allocate(1)
        pool.publish(block_id, (kind, b"digest"))
        if kind != held:
            pool.free([block_id])
    assert not table.reset()
    assert all((kind, b"digest") in pool for kind, pool in enumerate(pools))


@pytest.mark.parametrize("in_flight", [False, True])
def test_reset_of_prefix_cache_preempts_running_requests_when_asked_to(in_flight: bool) -> None:
    scheduler = make(num_blocks=40, budget=64, seats=4)
    scheduler.add(request("runs", 20, 6))
    batch = scheduler.schedule()
    if not in_flight:
        scheduler.update(batch, [StepResult([7])])
    assert not scheduler.reset_prefix_cache()
    assert [one.request_id for one in scheduler.running] == ["runs"]
    assert scheduler.reset_prefix_cache(reset_running_requests=True)
    assert not scheduler.running
    if in_flight:
        scheduler.update(batch, [StepResult([7])])
    batch = scheduler.schedule()
    assert [(one.request.request_id, one.num_tokens) for one in batch] == [
        ("runs", 21)
    ]  # computed again, including its output token
    check_integrity(scheduler)


@pytest.fixture(scope="module")
def config(tiny_llama: Path) -> EngineConfig:
    args = EngineArgs(
        model=str(tiny_llama), skip_tokenizer_init=True, block_size=16, max_num_seqs=8, max_num_batched_tokens=100
    )  # fmt: skip
    return args.create_engine_config()


def given_memory(config: EngineConfig, memory: int, caching: bool = True) -> EngineConfig:
    cache = msgspec.structs.replace(
        config.cache_config, kv_cache_memory_bytes=memory, enable_prefix_caching=caching
    )
    return msgspec.structs.replace(config, cache_config=cache)


def sizes(config: EngineConfig, layout: Layout, count: int) -> list[int]:
    return pool_sizes(config.cache_config, config.scheduler_config, layout, count)


# One layer in four sees everything, with heads as wide again, as in Gemma 4.
NARROW, WIDE = LayerShape(2, 8, 8, WindowSpec(64)), LayerShape(2, 16, 16)
# What 8 requests need at once: a window of 4 blocks, cut at both ends, and 100 tokens of a step.
NEEDED, ONE = 8 * (4 + 2) + 7, (4 + 2) + 7


@pytest.mark.parametrize(
    ("count", "caching", "expected"),
    [
        (ONE - 1, True, ONE - 1),
        (ONE + 1, True, ONE),
        (60, True, 40),  # as many bytes as the whole context: 60 x 64 = 40 x 96
        (1000, False, NEEDED),
        (1000, True, NEEDED + 250),
    ],
)
def test_window_has_what_all_requests_need_and_a_share_for_cached_prefixes_in_at_most_half_of_the_memory(
    config: EngineConfig, count: int, caching: bool, expected: int
) -> None:
    layout = lay_out([NARROW, NARROW, NARROW, WIDE], 4096)
    assert sizes(given_memory(config, 0, caching), layout, count) == [expected, count]


def test_pool_that_holds_the_windows_of_all_rows_does_not_count_as_the_usage_of_the_cache() -> None:
    pools = [BlockPool(100), BlockPool(8)]
    table = BlockTable(pools, 2, 40, BLOCK, KINDS)
    for _ in range(2):
        assert table.grow(table.open([], 0), 0, 16, 16)
    assert pools[1].num_free == 0
    assert table.usage == pools[0].usage < 0.1
    assert table.num_free == pools[0].num_free


@pytest.mark.parametrize("whole", [8, 10])
def test_long_requests_of_unequal_layers_have_more_room_than_in_one_pool(
    config: EngineConfig, whole: int
) -> None:
    """As in Gemma 3: a window in five of six layers, and seats whose windows would take all memory."""
    narrow, full = LayerShape(8, 256, 256, WindowSpec(1024)), LayerShape(8, 256, 256)
    layout = lay_out([*[narrow] * (5 * whole), *[full] * whole], 1 << 17)
    scheduling = msgspec.structs.replace(
        config.scheduler_config, max_num_seqs=256, max_num_batched_tokens=2048
    )
    memory, block = 40 << 30, layout.unit_bytes(16, torch.bfloat16)
    config = msgspec.structs.replace(given_memory(config, memory), scheduler_config=scheduling)
    count = num_blocks(config, [(layout, torch.bfloat16)], MemoryLedger(CpuPlatform()), 16)
    in_one_pool = memory // max(block) - 64
    assert count > 2 * in_one_pool


def test_layers_that_all_have_windows_share_the_memory_equally(config: EngineConfig) -> None:
    layout = lay_out([NARROW, NARROW, NARROW._replace(spec=WindowSpec(32))], 4096)
    assert sizes(config, layout, 1000) == [1000, 1000]


window_sizes = st.sampled_from([24, 50, 128])
some_layers = st.lists(
    st.builds(
        LayerShape, st.integers(1, 3), st.sampled_from([8, 16]), st.sampled_from([8, 16]),
        st.just(FULL) | st.builds(WindowSpec, window_sizes) | st.builds(ChunkSpec, window_sizes), st.none(),
    ),
    min_size=1,
    max_size=6,
)  # fmt: skip


@given(some_layers, st.integers(0, 1 << 24), st.booleans(), st.booleans())
def test_pools_take_the_memory_and_hold_the_longest_request(
    config: EngineConfig, layers: list[LayerShape], memory: int, caching: bool, quantised: bool
) -> None:
    dtype = torch.int8 if quantised else torch.bfloat16
    config, layout = given_memory(config, memory, caching), lay_out(layers, 4096)
    block = layout.unit_bytes(16, dtype)

    def size(count: int) -> int:
        return sum(map(int.__mul__, sizes(config, layout, count), block))

    try:
        count = num_blocks(config, [(layout, dtype)], MemoryLedger(CpuPlatform()), 16)
    except ValueError:
        assert memory < size(1)
        return
    assert size(count) <= memory < size(count + 1)
    if layout.num_pools == 1:
        assert count == memory // (16 * layout.token_bytes(dtype))
    pools = [BlockPool(size) for size in sizes(config, layout, count)]
    longest = 16 * count
    table = BlockTable([pools[pool] for pool in layout.pools], 1, longest, 16, layout.specs)
    row, step = table.open([], 0), config.scheduler_config.max_num_batched_tokens
    for start in range(0, min(longest, 4 * step), step):
        assert table.grow(row, start, min(start + step, longest), longest)


@given(some_layers)
def test_token_takes_the_bytes_of_its_layers(layers: list[LayerShape]) -> None:
    layout = lay_out(layers, 4096)
    numbers = sum(layer.kv_heads * (layer.key_dim + layer.value_dim) for layer in layers)
    assert layout.token_bytes(torch.bfloat16) == 2 * numbers
