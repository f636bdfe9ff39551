"""Faults of the KV cache's pools."""

from fault import Fault

LAYOUT = "engine_server/modeling/cache/layout.py"
SIZES = "engine_server/modeling/cache/kv_cache.py"
SPECS = "engine_server/modeling/cache/spec.py"
TABLE = "engine_server/core/cache/block_table.py"
TESTS = ("tests/core/test_pools.py",)
STATE_SPEC = ("tests/core/scheduling/test_state_spec.py",)
RECORDED_STEPS = ("tests/core/scheduling/test_recorded_steps.py",)

FAULTS = (
    Fault(
        "kinds of attention with different layers share a pool, whose blocks have room for the layers of all",
        LAYOUT,
        "pools = [distinct.index(own) for own in contents]",
        "pools = [0 for _ in contents]",
        TESTS,
    ),
    Fault(
        "a request takes blocks of one pool where another has too few",
        TABLE,
        "if sum([counts[kind] for kind in kinds]) > pool.num_free:",
        "if sum([counts[kind] for kind in kinds]) > self.pools[0].num_free:",
        TESTS,
    ),
    Fault(
        "the emptiest pool counts as the cache's usage",
        TABLE,
        "return max([pool.usage for pool in self._limiting]",
        "return min([pool.usage for pool in self._limiting]",
        TESTS,
    ),
    Fault(
        "a prefix counts as cached while a window's blocks are gone",
        TABLE,
        "if (kind, digest) not in self.pool_of[kind]:",
        "if spec.keeps_all and (kind, digest) not in self.pool_of[kind]:",
        TESTS,
    ),
    Fault(
        "a window's pool has no block to spare for one that begins and ends within a block",
        SPECS,
        "// block_size) + 2)",
        "// block_size))",
        TESTS,
    ),
    Fault(
        "no prefix of a model with windows stays cached while all seats are taken",
        SIZES,
        "size += most // CACHED_SHARE",
        "size += 0",
        TESTS,
    ),
    Fault(
        "windows of all seats take memory that a long request needs",
        SIZES,
        "min(size, memory // unit[pool])",
        "size",
        TESTS,
    ),
    Fault(
        "blocks that a preempted request has not filled are given to others as cached ones",
        TABLE,
        "filled = max(self._found[row], computed // self.block_size)",
        "filled = self._published[row]",
        RECORDED_STEPS,
    ),
    Fault(
        "a prefix is cached before other requests can read all that is kept of it",
        TABLE,
        "end = min(count, spec.readable(computed, num_tokens) // self.block_size)",
        "end = count",
        STATE_SPEC,
    ),
)
