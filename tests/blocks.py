"""What is always true of the KV cache's blocks."""

from collections import Counter

from engine_server.core.cache.block_pool import BlockTable


def check_blocks(table: BlockTable) -> None:
    """Every block is free in one place, or held by rows as often as is counted; keys and blocks agree."""
    pool = table.pool
    held = Counter(
        block_id
        for kind, rows in enumerate(table._held)
        for row, places in enumerate(rows)
        for block_id in table.ids[kind, row, places.start : places.stop].tolist()
    )
    assert pool._holders == [held[block_id] for block_id in range(pool.num_blocks)]
    assert sorted([*held, *pool._blank, *pool._cached]) == list(range(pool.num_blocks))
    assert pool._blocks == {key: block_id for block_id, key in pool._keys.items()}
    assert pool._cached.keys() <= pool._keys.keys() <= held.keys() | pool._cached.keys()
