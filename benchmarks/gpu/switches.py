"""The settings of the engine that are measured one by one."""

from typing import Any, NamedTuple


class Switch(NamedTuple):
    flags: dict[str, Any] = {}  # noqa: RUF012 - of the engine; never written to
    sampling: dict[str, Any] = {}  # noqa: RUF012 - of its requests; never written to


SWITCHES = {
    "none": Switch(),
    "sampled": Switch(sampling={"temperature": 0.8, "top_p": 0.95, "top_k": 50}),
    "no graphs": Switch({"enforce_eager": True}),
    "no overlap": Switch({"async_scheduling": False}),
    "batch-invariant": Switch({"batch_invariant": True}),
    "float8 cache": Switch({"kv_cache_dtype": "fp8"}),
}
