"""The scheduler's settings."""

import msgspec


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True):
    max_num_batched_tokens: int  # a step's token budget
    max_num_seqs: int
    enable_chunked_prefill: bool
    policy: str = "fcfs"  # or "priority"
    async_scheduling: bool | None = None  # prepare a step while the one before runs; None: on a GPU
    max_queue: int | None = None  # requests that may wait beside `max_num_seqs` that run; None: any number
    # Prompts that may be computed in part at the same time; 0: any number.
    max_num_partial_prefills: int = 0
    # Prompts longer than this take at most so many tokens of a step; 0: no limit.
    long_prefill_token_threshold: int = 0
