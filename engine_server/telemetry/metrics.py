"""The engine's Prometheus metrics as tables, with vLLM's names, labels and buckets, so that its dashboards work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, get_args

from prometheus_client import Counter, Gauge, Histogram

from engine_server.contract.wire.errors import ErrorCode
from engine_server.requests.scheduler_stats import FinishReason, SchedulerStats

Kind = type[Gauge] | type[Counter] | type[Histogram]
LABELS = ("model_name", "engine")


class Metric(NamedTuple):
    """A series of a metric.

    value: the statistics' field to report, or a function of them; a number or a list of numbers.
    """

    kind: Kind
    name: str
    text: str
    value: str | Callable[[Any], float | list[float]]
    # Bounds of a histogram; empty: numbers of tokens up to the context length.
    buckets: Sequence[float] = ()
    # Labels in addition to those of `scope`.
    labels: Mapping[str, str] = MappingProxyType({})
    scope: Sequence[str] = LABELS
    # The metric's name on older dashboards.
    former: str | None = None


# fmt: off
TIME_TO_FIRST_TOKEN = (.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80,
                       160, 640, 2560)
BETWEEN_TOKENS = (.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
LATENCY = (.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
STEP_TIME = (.0005, .001, .002, .003, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 30)
STALLS = (.001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5)
PREPARATION = (.0001, .0002, .0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10)
PICTURE_TIME = (.005, .01, .02, .05, .1, .2, .5, 1, 2, 5)
STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
CHOICES = (1, 2, 5, 10, 20)

OF_STATE = [  # from SchedulerStats
    Metric(Gauge, "vllm:num_requests_running", "Requests in the running batch.", "num_running"),
    Metric(Gauge, "vllm:num_requests_waiting", "Requests that wait to be scheduled.", "num_waiting"),
    Metric(Gauge, "vllm:num_requests_waiting_by_reason", "Waiting requests, by the cause of the wait.",
           lambda s: 0 if s.halted else s.num_waiting, labels={"reason": "capacity"}),
    Metric(Gauge, "vllm:num_requests_waiting_by_reason", "", lambda s: s.num_waiting if s.halted else 0,
           labels={"reason": "deferred"}),
    *(Metric(Gauge, "vllm:engine_sleep_state", "1 for the engine's current state, 0 for others.",
             partial(lambda level, s: s.sleep_level == level, level), labels={"sleep_state": state})
      for level, state in enumerate(("awake", "weights_offloaded", "discard_all"))),
    Metric(Gauge, "vllm:kv_cache_usage_perc", "Share of KV cache blocks in use, 0 to 1.", "kv_cache_usage",
           former="vllm:gpu_cache_usage_perc"),
    Metric(Counter, "vllm:num_preemptions", "Requests preempted because blocks ran out.", "num_preemptions"),
    Metric(Counter, "vllm:prefix_cache_queries", "Prompt tokens sought in the prefix cache.", "prefix_cache_queries"),
    Metric(Counter, "vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache.", "prefix_cache_hits"),
    Metric(Counter, "fairlead:tokens_without_state",
           "Tokens computed although their K and V were cached, since no state of recurrent layers was.",
           "tokens_without_state"),
    *(Metric(Counter, "fairlead:pictures_needed", "Pictures that prompts needed, by the source of their rows.",
             value, labels={"source": source})
      for source, value in (("encoder", "num_pictures_encoded"), ("cache", "num_pictures_found"))),
    Metric(Histogram, "fairlead:picture_seconds", "Time for a picture, by stage.",
           lambda s: [s.encoding_seconds] if s.num_pictures_encoded else [], PICTURE_TIME, {"stage": "encode"}),
    Metric(Histogram, "fairlead:step_seconds", "Duration of a turn of the core, which launches or collects a step.",
           lambda s: [s.step_seconds] if s.step_seconds else [], STEP_TIME),
    Metric(Histogram, "fairlead:step_host_seconds", "Host time of a turn, outside the model and the sampler's kernels.",
           lambda s: [s.host_seconds] if s.step_seconds else [], STEP_TIME),
    Metric(Histogram, "fairlead:step_device_seconds", "Device time of a step.",
           lambda s: [s.device_seconds] if s.num_tokens else [], STEP_TIME),
    *(Metric(Counter, "fairlead:steps", "Steps by execution of the model: replayed from a capture, or eager.",
             partial(lambda replayed, s: s.num_tokens > 0 and s.replayed == replayed, replayed), labels={"run": run})
      for replayed, run in enumerate(("eager", "graph"))),
    *(Metric(Gauge, "fairlead:gpu_memory_bytes", "GPU memory by use; weights include all that lives between steps.",
             field, labels={"use": use})
      for use, field in (("weights", "weight_bytes"), ("kv_cache", "cache_bytes"), ("free", "free_bytes"))),
]
OF_STEP = [  # from IterationStats
    Metric(Counter, "vllm:prompt_tokens", "Prompt tokens processed.", "num_prompt_tokens"),
    Metric(Counter, "vllm:prompt_tokens_cached", "Prompt tokens that were not computed.", "num_cached_prompt_tokens"),
    Metric(Counter, "vllm:prompt_tokens_by_source", "Prompt tokens processed, by the source of their K and V.",
           lambda s: s.num_prompt_tokens - s.num_cached_prompt_tokens, labels={"source": "local_compute"}),
    Metric(Counter, "vllm:prompt_tokens_by_source", "", "num_cached_prompt_tokens",
           labels={"source": "local_cache_hit"}),
    Metric(Counter, "vllm:generation_tokens", "Tokens generated.", "num_generation_tokens"),
    Metric(Counter, "fairlead:generation_tokens_by_way", "Tokens generated, by their way from a step to the client.",
           "num_short_way_tokens", labels={"way": "short"}),
    Metric(Counter, "fairlead:generation_tokens_by_way", "",
           lambda s: s.num_generation_tokens - s.num_short_way_tokens, labels={"way": "long"}),
    Metric(Histogram, "vllm:iteration_tokens_total", "Prompt tokens and generated tokens of one step.",
           lambda s: [s.num_prompt_tokens + s.num_generation_tokens] if s.num_generation_tokens else [], STEP_TOKENS),
    Metric(Counter, "vllm:admission_rejections", "Requests refused because the queue was full.", "num_rejected",
           labels={"reason": ErrorCode.QUEUE_FULL}, scope=LABELS[:1]),
    Metric(Histogram, "vllm:time_to_first_token_seconds", "Arrival to the first token.", "time_to_first_tokens",
           TIME_TO_FIRST_TOKEN),
    Metric(Histogram, "vllm:inter_token_latency_seconds", "Time between a request's tokens.", "inter_token_latencies",
           BETWEEN_TOKENS, former="vllm:time_per_output_token_seconds"),
    *(Metric(Counter, "fairlead:pictures", "Pictures in requests, by outcome.", value, labels={"outcome": outcome})
      for outcome, value in (("processed", lambda s: len(s.pictures.seconds)), ("remembered", "pictures.remembered"),
                             ("refused", "pictures.refused"))),
    Metric(Histogram, "fairlead:picture_seconds", "", "pictures.seconds", PICTURE_TIME, {"stage": "process"}),
    Metric(Histogram, "fairlead:event_loop_stall_seconds", "Longest stall of the front end's event loop in a step.",
           "event_loop_stalls", STALLS),
    Metric(Histogram, "fairlead:prompt_render_seconds", "Rendering of a conversation by the chat template.",
           "prompts.render_seconds", PREPARATION),
    Metric(Histogram, "fairlead:prompt_tokenize_seconds", "Tokenization of a prompt's text.",
           "prompts.tokenize_seconds", PREPARATION),
    Metric(Histogram, "fairlead:prompt_wait_seconds", "Wait of long prompts for their turn to be tokenized.",
           "prompts.wait_seconds", PREPARATION),
    Metric(Counter, "fairlead:prompt_characters", "Characters of texts that were tokenized.",
           "prompts.num_characters"),
    Metric(Counter, "fairlead:prompt_characters_found", "Characters of texts whose tokens were known.",
           "prompts.num_characters_found"),
]
OF_COMPLETION = [  # from FinishedRequest
    *(Metric(Counter, "vllm:request_success", "Requests ended, by their reason.",
             partial(lambda reason, s: s.reason == reason, reason), labels={"finished_reason": reason})
      for reason in get_args(FinishReason)),
    Metric(Histogram, "vllm:e2e_request_latency_seconds", "Arrival to the last token.", "e2e", LATENCY),
    Metric(Histogram, "vllm:request_queue_time_seconds", "Arrival to first scheduled.", "queue", LATENCY),
    Metric(Histogram, "vllm:request_inference_time_seconds", "First scheduled to last token.", "inference", LATENCY),
    Metric(Histogram, "vllm:request_prefill_time_seconds", "First scheduled to the first token.", "prefill", LATENCY),
    Metric(Histogram, "vllm:request_decode_time_seconds", "The first token to the last.", "decode", LATENCY),
    Metric(Histogram, "vllm:request_time_per_output_token_seconds", "A request's mean time between tokens.",
           "time_per_output_tokens", BETWEEN_TOKENS),
    Metric(Histogram, "vllm:request_prompt_tokens", "A request's prompt tokens.", "num_prompt_tokens"),
    Metric(Histogram, "vllm:request_generation_tokens", "A request's generated tokens.", "num_generation_tokens"),
    Metric(Histogram, "vllm:request_prefill_kv_computed_tokens", "A request's prompt tokens less the cached ones.",
           lambda s: s.num_prompt_tokens - s.num_cached_tokens),
    Metric(Histogram, "vllm:request_params_max_tokens", "A request's max_tokens, where given.",
           lambda s: [] if s.max_tokens is None else s.max_tokens),
]
OF_REQUEST = [  # from EndedRequest
    Metric(Histogram, "vllm:request_params_n", "Completions that a request asked for.", "params.n", CHOICES),
    Metric(Histogram, "vllm:request_max_num_generation_tokens", "The longest of a request's completions, in tokens.",
           lambda s: max(completion.num_generation_tokens for completion in s.completions)),
]
# fmt: on


def of_speculation(most_drafts: int) -> list[Metric]:
    """Return the metrics of speculative decoding, from SchedulerStats.

    most_drafts: of a request in a step.
    """

    def accepted_at(position: int, stats: SchedulerStats) -> int:
        counts = stats.accepted_per_position
        return counts[position] if position < len(counts) else 0

    prefix = "vllm:spec_decode_num"
    return [
        Metric(Counter, f"{prefix}_drafts", "Requests whose drafts a step verified.", "num_drafts"),
        Metric(Counter, f"{prefix}_draft_tokens", "Draft tokens that were verified.", "num_draft_tokens"),
        Metric(
            Counter, f"{prefix}_accepted_tokens", "Draft tokens that were accepted.", "num_accepted_tokens"
        ),
        *(
            Metric(
                Counter,
                f"{prefix}_accepted_tokens_per_pos",
                "Draft tokens that were accepted, by their position in a request's drafts.",
                partial(accepted_at, position),
                labels={"position": str(position)},
            )
            for position in range(most_drafts)
        ),
    ]


def token_buckets(longest: int) -> list[int]:
    """Return 1, 2, 5, 10, 20, 50, ... up to `longest`."""
    return [
        step * 10**power
        for power in range(len(str(longest)))
        for step in (1, 2, 5)
        if step * 10**power <= longest
    ]
