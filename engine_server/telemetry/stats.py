"""Statistics that stat loggers receive after each step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from engine_server.requests.picture_stats import PictureStats
from engine_server.requests.sampling_params import SamplingParams
from engine_server.requests.scheduler_stats import FinishReason


@dataclass(frozen=True, slots=True)
class FinishedRequest:
    """Times and counts of a completion, reported once when it ends. Times are in seconds."""

    reason: FinishReason
    num_prompt_tokens: int
    num_generation_tokens: int
    # As requested; None: up to the end of the context.
    max_tokens: int | None
    # Arrival to last token.
    e2e: float
    # Arrival to first scheduling.
    queue: float
    # First scheduling to first token.
    prefill: float
    # First token to last token.
    decode: float
    # Prompt tokens found in the prefix cache.
    num_cached_tokens: int = 0

    @property
    def inference(self) -> float:
        return self.prefill + self.decode

    @property
    def time_per_output_tokens(self) -> list[float]:
        """The mean time between this completion's tokens; empty if it has at most one."""
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
class PromptStats:
    """What the preparation of prompts took since the last step, in seconds, one number for each text or wait."""

    render_seconds: list[float] = field(default_factory=list)
    tokenize_seconds: list[float] = field(default_factory=list)
    # Of prompts that are tokenized in a thread: until it was their turn.
    wait_seconds: list[float] = field(default_factory=list)
    # Of texts that were tokenized, and of their parts whose tokens were known.
    num_characters: int = 0
    num_characters_found: int = 0


@dataclass(slots=True)
class IterationStats:
    """Statistics of one step, collected by the front end from the core's outputs."""

    # Counts over the prompts whose first token was generated in this step.
    num_prompt_tokens: int = 0
    num_generation_tokens: int = 0
    # Of those, the ones that no output contained, since a stream's sink took them.
    num_short_way_tokens: int = 0
    num_cached_prompt_tokens: int = 0
    time_to_first_tokens: list[float] = field(default_factory=list)
    inter_token_latencies: list[float] = field(default_factory=list)
    finished: list[FinishedRequest] = field(default_factory=list)
    ended: list[EndedRequest] = field(default_factory=list)
    # Requests refused because the queue was full.
    num_rejected: int = 0
    pictures: PictureStats = field(default_factory=PictureStats)
    # The longest stall of the front end's event loop since the last step, in seconds; empty without a loop.
    event_loop_stalls: list[float] = field(default_factory=list)
    prompts: PromptStats = field(default_factory=PromptStats)
