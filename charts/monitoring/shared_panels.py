"""Panels that are on more than one dashboard."""

from charts.monitoring.panels import Panel, Query, graph, number
from charts.monitoring.promql import (
    SELECTED,
    WINDOW,
    or_zero,
    quantile,
    rate,
    ratio,
    series,
    total,
)

QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
REQUESTS = series("fairlead_router_requests_total", SELECTED)
FAILED = series("fairlead_router_requests_total", SELECTED, 'code=~"5.."')
DESIRED = series("fairlead_operator_desired_replicas", SELECTED)
READY = series("fairlead_operator_ready_replicas", SELECTED)
GENERATED = series("vllm:generation_tokens_total", SELECTED)


def quantiles(histogram: str, matchers: str) -> list[Query]:
    return [Query(name, quantile(share, histogram, matchers=matchers)) for name, share in QUANTILES.items()]


def llmdeployments() -> Panel:
    return number(
        "LLMDeployments", "LLMDeployments in the chosen namespaces.", "short", or_zero(f"count({DESIRED})")
    )


def requests() -> Panel:
    return number(
        "Requests", "Requests per second that routers have answered.", "reqps", or_zero(rate(REQUESTS))
    )


def failed_requests() -> Panel:
    return number(
        "Failed requests",
        "Share of requests with a status of 500 or above.",
        "percentunit",
        or_zero(ratio(rate(FAILED), rate(REQUESTS))),
        (0.001, "orange"),
        (0.01, "red"),
    )


def generated_tokens() -> Panel:
    return number(
        "Generated tokens", "Tokens per second that engines generated.", "short", or_zero(rate(GENERATED))
    )


def requests_by_model() -> Panel:
    return graph(
        "Requests by model",
        "Requests per second that routers have answered.",
        "reqps",
        Query("{{model}}", rate(REQUESTS, "model")),
        stacked=True,
    )


def requests_by_status() -> Panel:
    return graph(
        "Requests by status",
        "Per second, as routers answered; 499: the client disconnected before an answer.",
        "reqps",
        Query("{{code}}", rate(REQUESTS, "code")),
        stacked=True,
    )


def time_to_first_byte() -> Panel:
    return graph(
        "Time to first byte at the router",
        "From a request's arrival, waits for a replica included.",
        "s",
        *quantiles("fairlead_router_time_to_first_byte_seconds", SELECTED),
    )


def duration() -> Panel:
    return graph(
        "Duration at the router",
        "From a request's arrival to its last byte.",
        "s",
        *quantiles("fairlead_router_request_duration_seconds", SELECTED),
    )


def router_errors(*matchers: str) -> Panel:
    errors = series("fairlead_router_errors_total", *matchers)
    return graph(
        "Errors of the router",
        "Per second: errors that routers answered themselves, by their code.",
        "ops",
        Query("{{reason}}", rate(errors, "reason")),
    )


def replicas() -> Panel:
    return graph(
        "Replicas",
        "Wanted and ready replicas, over the chosen models, and those that the autoscaler wants.",
        "short",
        Query("wanted", total(DESIRED)),
        Query("ready", total(READY)),
        Query("autoscaler", total(series("fairlead_operator_wanted_replicas", SELECTED))),
    )


def gpu_memory() -> Panel:
    return graph(
        "GPU memory by use",
        "Over all GPUs; 0 on CPUs.",
        "bytes",
        Query("{{use}}", total(series("fairlead:gpu_memory_bytes", SELECTED), "use")),
        stacked=True,
    )


def memory(component: str, *others: Query, description: str = "Resident memory of each process.") -> Panel:
    """Return the memory of the processes that `component` selects, and `others`."""
    own = Query("{{pod}}", total(f"process_resident_memory_bytes and {component}", "pod"))
    return graph("Memory", description, "bytes", own, *others)


def cpu(component: str) -> Panel:
    used = total(f"rate(process_cpu_seconds_total[{WINDOW}]) and {component}", "pod")
    return graph("CPU", "Cores in use by each process.", "short", Query("{{pod}}", used))
