"""The memory of the cache of segments, and the order in which they give way."""

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from itertools import count

import pytest
from tokenizer_kinds import byte_level

from engine_server.engine.input.segment_cache import SegmentCache, SegmentKey, Sharers, owner_of

LIMIT = 4 << 20
OWNER = owner_of("test", Sharers("alice"))
Entry = tuple[SegmentKey, bytes]


def shortest() -> Iterator[Entry]:
    return ((SegmentKey(OWNER, chr(0x100 + number)), bytes(4)) for number in count())


def one_for_each_scope() -> Iterator[Entry]:
    scopes = (owner_of("test", Sharers(str(number), "salt" * 99)) for number in count())
    return ((SegmentKey(owner, "a" * 9), bytes(8)) for owner in scopes)


def tokenized() -> Iterator[Entry]:
    """Yield texts as the tokenizer leaves them, with their UTF-8 beside them."""
    tokenizer = byte_level()
    for number in count():
        segment = f"{number} " + "\U0001f389" * 300
        (encoding,) = tokenizer.encode_batch_fast([segment])
        yield SegmentKey(OWNER, segment), bytes(4 * len(encoding.ids))


@pytest.mark.parametrize("entries", [shortest, one_for_each_scope, tokenized])
def test_memory_of_a_full_cache_is_about_its_limit(entries: Callable[[], Iterator[Entry]]) -> None:
    cache = SegmentCache(LIMIT)
    source = entries()
    next(source)  # imports and trains
    gc.collect()
    tracemalloc.start()
    try:
        for number, (key, ids) in enumerate(source, 1):
            cache.keep(key, ids)
            if number > 2 * len(cache):
                break
        del key, ids
        allocated, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert LIMIT * 0.9 < cache.used <= LIMIT
    assert allocated < LIMIT * 1.2


def test_segment_that_was_used_the_longest_ago_gives_way() -> None:
    cache = SegmentCache(10_000)
    keys = [SegmentKey(OWNER, f"{number:0500}") for number in range(99)]
    for key in keys:
        cache.keep(key, bytes(400))
        assert cache.find(keys[0]) is not None
    kept = [key for key in keys if cache.find(key) is not None]
    assert kept == [keys[0], *keys[1 - len(kept) :]]


def test_segment_for_which_many_would_give_way_is_not_kept() -> None:
    cache = SegmentCache(100_000)
    cache.keep(SegmentKey(OWNER, "short"), bytes(4))
    cache.keep(SegmentKey(OWNER, "long" * 5_000), bytes(4))
    assert cache.find(SegmentKey(OWNER, "short")) == bytes(4)
    assert cache.find(SegmentKey(OWNER, "long" * 5_000)) is None
