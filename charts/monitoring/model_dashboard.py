"""The dashboard of one model: its replicas, its latency as users see it, and the work of its engines."""

from grafana_foundation_sdk.models.dashboard import Dashboard

from charts.monitoring import shared_panels
from charts.monitoring.panels import Panel, Query, board, graph, heatmap, number
from charts.monitoring.promql import (
    SELECTED,
    largest,
    mean,
    or_zero,
    quantile,
    rate,
    ratio,
    series,
    total,
)
from charts.monitoring.shared_panels import quantiles

CACHE_HITS = series("vllm:prefix_cache_hits_total", SELECTED)
CACHE_QUERIES = series("vllm:prefix_cache_queries_total", SELECTED)
DRAFTED = series("vllm:spec_decode_num_draft_tokens_total", SELECTED)
ACCEPTED = series("vllm:spec_decode_num_accepted_tokens_total", SELECTED)


def model() -> Dashboard:
    return board(
        "Model",
        "One LLMDeployment, or the sum of several: replicas, latency as users see it, and the work of its engines.",
        [
            ("Overview", overview()),
            ("Latency", latency()),
            ("Load", load()),
            ("Requests", requests()),
            ("Engine", engine()),
        ],
    )


def in_engines(metric: str) -> str:
    return series(metric, SELECTED)


def overview() -> list[Panel]:
    return [
        number(
            "Replicas",
            "Wanted replicas.",
            "short",
            or_zero(total(series("fairlead_operator_desired_replicas", SELECTED))),
        ),
        number(
            "Ready",
            "Ready replicas.",
            "short",
            or_zero(total(series("fairlead_operator_ready_replicas", SELECTED))),
        ),
        shared_panels.requests(),
        shared_panels.failed_requests(),
        number(
            "First token p95",
            "95th percentile of the time from a request's arrival at an engine to its first token.",
            "s",
            quantile(0.95, "vllm:time_to_first_token_seconds", matchers=SELECTED),
        ),
        number(
            "Between tokens p95",
            "95th percentile of the time between a request's tokens.",
            "s",
            quantile(0.95, "vllm:inter_token_latency_seconds", matchers=SELECTED),
        ),
        shared_panels.generated_tokens(),
        number(
            "Prefix cache hits",
            "Share of prompt tokens that were found in the prefix cache.",
            "percentunit",
            ratio(rate(CACHE_HITS), rate(CACHE_QUERIES)),
        ),
    ]


def latency() -> list[Panel]:
    return [
        shared_panels.time_to_first_byte(),
        graph(
            "Time to first token in engines",
            "From a request's arrival at an engine.",
            "s",
            *quantiles("vllm:time_to_first_token_seconds", SELECTED),
        ),
        graph(
            "Time between tokens",
            "Of each request.",
            "s",
            *quantiles("vllm:inter_token_latency_seconds", SELECTED),
        ),
        shared_panels.duration(),
        graph(
            "Duration in engines",
            "From a request's arrival at an engine to its last token.",
            "s",
            *quantiles("vllm:e2e_request_latency_seconds", SELECTED),
        ),
        graph(
            "Parts of a request's time",
            "Means of the wait for a place in the batch, of the prompt's computation and of the generation.",
            "s",
            Query("queue", mean("vllm:request_queue_time_seconds", matchers=SELECTED)),
            Query("prefill", mean("vllm:request_prefill_time_seconds", matchers=SELECTED)),
            Query("decode", mean("vllm:request_decode_time_seconds", matchers=SELECTED)),
            stacked=True,
        ),
    ]


def load() -> list[Panel]:
    return [
        shared_panels.replicas(),
        graph(
            "Reasons of the autoscaler",
            "The reason of the last decision on each model.",
            "short",
            Query("{{reason}}", total(series("fairlead_operator_scaling_reason", SELECTED), "reason")),
        ),
        graph(
            "Requests in engines",
            "Requests that run in the batch and that wait for a place in it.",
            "short",
            Query("running", total(in_engines("vllm:num_requests_running"))),
            Query("waiting", total(in_engines("vllm:num_requests_waiting"))),
            Query("held in routers", total(series("fairlead_router_held", SELECTED))),
        ),
        graph(
            "Requests in the batch by replica",
            "Even curves show that the router spreads the load evenly.",
            "short",
            Query("{{pod}}", total(in_engines("vllm:num_requests_running"), "pod")),
        ),
        graph(
            "KV cache use by replica",
            "Share of KV cache blocks, or of states of recurrent layers, in use; at 1 requests wait or are preempted.",
            "percentunit",
            Query("{{pod}}", largest(in_engines("vllm:kv_cache_usage_perc"), "pod")),
        ),
        graph(
            "Tokens",
            "Tokens per second: of prompts that were computed or found in the cache, computed although K and V were "
            "cached, for want of a state of recurrent layers, and generated ones.",
            "short",
            Query("prompt", rate(in_engines("vllm:prompt_tokens_total"))),
            Query("prompt, from the cache", rate(in_engines("vllm:prompt_tokens_cached_total"))),
            Query("cached, without a state", rate(in_engines("fairlead:tokens_without_state_total"))),
            Query("generated", rate(in_engines("vllm:generation_tokens_total"))),
        ),
        graph(
            "Prefix cache hits by replica",
            "Share of prompt tokens that were found in the prefix cache.",
            "percentunit",
            Query("{{pod}}", ratio(rate(CACHE_HITS, "pod"), rate(CACHE_QUERIES, "pod"))),
        ),
        graph(
            "Preemptions and refusals",
            "Per second: requests that were preempted because KV cache blocks ran out, and refused because the queue "
            "was full.",
            "ops",
            Query("preempted", rate(in_engines("vllm:num_preemptions_total"))),
            Query("refused", rate(in_engines("vllm:admission_rejections_total"))),
        ),
    ]


def requests() -> list[Panel]:
    return [
        shared_panels.requests_by_status(),
        graph(
            "Completions by the reason of their end",
            "Per second.",
            "ops",
            Query("{{finished_reason}}", rate(in_engines("vllm:request_success_total"), "finished_reason")),
            stacked=True,
        ),
        shared_panels.router_errors(SELECTED),
        heatmap(
            "Prompt length",
            "Tokens of the prompts of ended completions.",
            "short",
            rate(in_engines("vllm:request_prompt_tokens_bucket"), "le"),
            span=12,
        ),
        heatmap(
            "Generated length",
            "Tokens of ended completions.",
            "short",
            rate(in_engines("vllm:request_generation_tokens_bucket"), "le"),
            span=12,
        ),
    ]


def engine() -> list[Panel]:
    return [
        graph(
            "Step of the core",
            "Means of a step's duration, of its host time outside the model, and of its device time.",
            "s",
            Query("step", mean("fairlead:step_seconds", matchers=SELECTED)),
            Query("host", mean("fairlead:step_host_seconds", matchers=SELECTED)),
            Query("device", mean("fairlead:step_device_seconds", matchers=SELECTED)),
        ),
        graph(
            "Steps by execution",
            "Per second: replayed from a CUDA graph or a decode program, or eager.",
            "ops",
            Query("{{run}}", rate(in_engines("fairlead:steps_total"), "run")),
        ),
        graph(
            "Tokens of a step",
            "Mean of prompt tokens and generated tokens in one step.",
            "short",
            Query("tokens", mean("vllm:iteration_tokens_total", matchers=SELECTED)),
        ),
        graph(
            "Accepted drafts",
            "Share of the draft tokens of speculative decoding that were accepted, and by which each saved a step.",
            "percentunit",
            Query("accepted", ratio(rate(ACCEPTED), rate(DRAFTED))),
        ),
        graph(
            "Draft tokens",
            "Per second: verified and accepted ones.",
            "short",
            Query("verified", rate(DRAFTED)),
            Query("accepted", rate(ACCEPTED)),
        ),
        graph(
            "Stalls of the front end",
            "99th percentile of the longest stall of the event loop in a step; it delays all streams of a replica.",
            "s",
            Query("p99", quantile(0.99, "fairlead:event_loop_stall_seconds", matchers=SELECTED)),
        ),
        graph(
            "Time without progress of the core",
            "Rises from about 0 when an engine hangs; its pod is restarted above --hang-timeout.",
            "s",
            Query("{{pod}}", largest(in_engines("fairlead:core_stalled_seconds"), "pod")),
        ),
        graph(
            "Last start of a replica",
            "From the pod's creation until it was ready, by phase: waiting for a node, image and volumes, download, "
            "libraries and weights, warm-up, and the rest.",
            "s",
            Query("{{phase}}", largest(series("fairlead_operator_start_seconds", SELECTED), "phase")),
            stacked=True,
        ),
        graph(
            "Last start of the engines",
            "The longest of the replicas, from the start of the process; `ready` is the sum.",
            "s",
            Query("{{phase}}", largest(in_engines("fairlead:startup_seconds"), "phase")),
        ),
        shared_panels.gpu_memory(),
        graph(
            "Memory of the processes",
            "Resident memory of the front ends.",
            "bytes",
            Query(
                "{{pod}}",
                total(series("process_resident_memory_bytes", SELECTED), "pod"),
            ),
        ),
        graph(
            "HTTP requests of engines",
            "Per second, by status, probes of kubelet and router included.",
            "reqps",
            Query("{{status}}", rate(in_engines("http_requests_total"), "status")),
        ),
    ]
