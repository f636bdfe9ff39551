"""Settings of the scheduler."""

from typing import Literal, NamedTuple

import msgspec

SchedulingPolicy = Literal["fcfs", "priority"]


class PolicyDescription(NamedTuple):
    """A scheduling policy as the engine's users see it; its queue is in core/scheduling/waiting.py."""

    # By what requests are ordered.
    order: str
    # True if a request may have a priority.
    takes_priorities: bool


SCHEDULING_POLICIES: dict[SchedulingPolicy, PolicyDescription] = {
    "fcfs": PolicyDescription("by arrival", takes_priorities=False),
    "priority": PolicyDescription("by priority and then arrival", takes_priorities=True),
}


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and order of a step's batch."""

    # Token budget of a step.
    max_num_batched_tokens: int
    max_num_seqs: int
    enable_chunked_prefill: bool
    policy: SchedulingPolicy = "fcfs"
    # Prepare a step while the previous one runs; None: on a GPU.
    async_scheduling: bool | None = None
    # Maximum number of waiting requests; None: any number.
    max_queue: int | None = None
    # Maximum number of partially computed prompts at the same time; 0: any number.
    max_num_partial_prefills: int = 0
    # Maximum number of tokens of one prompt in a step; 0: no limit.
    long_prefill_token_threshold: int = 0
    # The longest time of a step with prompts and decodes; 0: no limit.
    max_step_ms: float = 0
    # Maximum number of draft tokens of all requests together.
    max_num_drafts: int = 0

    @property
    def takes_priorities(self) -> bool:
        """True if a request may have a priority."""
        return SCHEDULING_POLICIES[self.policy].takes_priorities

    @property
    def max_num_rows(self) -> int:
        """Maximum number of tokens of a step from whose logits the next ones are sampled."""
        return self.max_num_seqs + self.max_num_drafts
