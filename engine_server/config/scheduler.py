"""Settings of the scheduler."""

import msgspec


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and order of a step's batch."""

    # Token budget of a step.
    max_num_batched_tokens: int
    max_num_seqs: int
    enable_chunked_prefill: bool
    # "fcfs" or "priority".
    policy: str = "fcfs"
    # Prepare a step while the previous one runs; None: on a GPU.
    async_scheduling: bool | None = None
    # Maximum number of waiting requests; None: any number.
    max_queue: int | None = None
    # Maximum number of partially computed prompts at the same time; 0: any number.
    max_num_partial_prefills: int = 0
    # Maximum number of tokens of one prompt in a step; 0: no limit.
    long_prefill_token_threshold: int = 0
    # Maximum number of draft tokens of all requests together.
    max_num_drafts: int = 0

    @property
    def max_num_rows(self) -> int:
        """Maximum number of tokens of a step from whose logits the next ones are sampled."""
        return self.max_num_seqs + self.max_num_drafts
