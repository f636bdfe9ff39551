"""The settings of the engine that are measured one by one."""

from typing import Any, NamedTuple


class Switch(NamedTuple):
    name: str
    flags: dict[str, Any] = {}  # noqa: RUF012 - of the engine; never written to
    sampling: dict[str, Any] = {}  # noqa: RUF012 - of its requests; never written to


SWITCHES = (
    Switch("as it is"),
    Switch("sampled", sampling={"temperature": 0.8, "top_p": 0.95, "top_k": 50}),
    Switch("no graphs", {"enforce_eager": True}),
    Switch("no overlap", {"async_scheduling": False}),
    Switch("batch-invariant", {"batch_invariant": True}),
    Switch("float8 cache", {"kv_cache_dtype": "fp8"}),
)
