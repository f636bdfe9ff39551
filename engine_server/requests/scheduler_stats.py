"""The state of the scheduler after a step, as the core reports it."""

from typing import Literal

import msgspec

FinishReason = Literal["stop", "length", "abort", "error", "timeout"]


class SchedulerStats(msgspec.Struct, array_like=True, frozen=True):
    """The core's state after a step; it crosses the process boundary.

    Gauges are the value now; every other field counts only what the step added.
    """

    num_running: int = 0
    num_waiting: int = 0
    kv_cache_usage: float = 0.0  # 0 to 1
    num_preemptions: int = 0
    prefix_cache_queries: int = 0  # in tokens
    prefix_cache_hits: int = 0
    halted: bool = False  # by a pause or sleep
    sleep_level: int = 0
    num_tokens: int = 0  # that the step computed; 0: there was none
    step_seconds: float = 0.0  # of the core
    host_seconds: float = 0.0  # of those, spent beside the model's call and the sampler's kernels
    device_seconds: float = 0.0  # that a device took for a step, by a GPU's own clock
    replayed: bool = False  # from a CUDA graph
    weight_bytes: int = 0  # of a GPU's memory, with all else that lives between steps
    cache_bytes: int = 0
    free_bytes: int = 0
