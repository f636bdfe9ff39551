"""What the engine tells its stat loggers after each step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from engine_server.requests.sampling_params import SamplingParams
from engine_server.requests.scheduler_stats import FinishReason


@dataclass(frozen=True, slots=True)
class FinishedRequest:
    """One completion's life, told once when it ends. Times are in seconds."""

    reason: FinishReason
    num_prompt_tokens: int
    num_generation_tokens: int
    max_tokens: int | None  # as asked for; None: up to the context
    e2e: float  # arrival to last token
    queue: float  # arrival to first scheduled
    prefill: float  # first scheduled to first token
    decode: float  # first token to last token
    num_cached_tokens: int = 0  # prompt tokens that were found in the prefix cache

    @property
    def inference(self) -> float:
        return self.prefill + self.decode

    @property
    def time_per_output_tokens(self) -> list[float]:
        """The mean time between this completion's tokens; none where it has at most one."""
        gaps = self.num_generation_tokens - 1
        return [self.decode / gaps] if gaps > 0 else []


@dataclass(frozen=True, slots=True)
class EndedRequest:
    """A request whose completions have all ended."""

    request_id: str
    params: SamplingParams
    trace_headers: Mapping[str, str] | None
    completions: list[FinishedRequest]


@dataclass(slots=True)
class IterationStats:
    """What one step brought, collected by the front end as it handles the core's outputs."""

    num_prompt_tokens: int = 0  # of the prompts whose first token came in this step
    num_generation_tokens: int = 0
    num_cached_prompt_tokens: int = 0
    time_to_first_tokens: list[float] = field(default_factory=list)
    inter_token_latencies: list[float] = field(default_factory=list)
    finished: list[FinishedRequest] = field(default_factory=list)
    ended: list[EndedRequest] = field(default_factory=list)
    num_rejected: int = 0  # requests refused for want of room in the queue
    # The longest stall of the front end's event loop since the last step, in seconds; empty without a loop.
    event_loop_stalls: list[float] = field(default_factory=list)
