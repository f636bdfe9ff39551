"""Statistics of the core after a step."""

from typing import Literal

import msgspec

# "refused": the model can't take a part of the prompt.
FinishReason = Literal["stop", "length", "abort", "error", "timeout", "refused"]


class SchedulerStats(msgspec.Struct, array_like=True, frozen=True):
    """The core's state after a step, sent to the front end.

    Gauges hold the current value; every other field counts only what the step added.
    """

    num_running: int = 0
    num_waiting: int = 0
    # 0 to 1.
    kv_cache_usage: float = 0.0
    num_preemptions: int = 0
    # In tokens.
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    # Tokens that were computed although their K and V were cached, since no state of recurrent layers was.
    tokens_without_state: int = 0
    # True during a pause or sleep.
    halted: bool = False
    sleep_level: int = 0
    # Tokens of the step whose results were collected; 0: none were.
    num_tokens: int = 0
    # Duration of the turn in which a step was launched, or an earlier one's results collected; 0: neither was.
    step_seconds: float = 0.0
    # Part of the turn outside the model and the sampler's kernels.
    host_seconds: float = 0.0
    # Device time of the collected step, on a GPU by its own clock.
    device_seconds: float = 0.0
    # True if the collected step ran from a capture.
    replayed: bool = False
    # GPU memory of the weights and everything else that lives between steps.
    weight_bytes: int = 0
    cache_bytes: int = 0
    free_bytes: int = 0
    # Names of the adapters of running and of waiting requests.
    running_adapters: list[str] = []
    waiting_adapters: list[str] = []
    # Requests whose drafts the step verified, those drafts, and how many of them were accepted.
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    # Requests whose first, second, ... draft was accepted.
    accepted_per_position: list[int] = []
    # Pictures that were encoded, and those that requests found encoded.
    num_pictures_encoded: int = 0
    num_pictures_found: int = 0
    encoding_seconds: float = 0.0
