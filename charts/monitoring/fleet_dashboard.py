"""The dashboard of all models: which are ready, how much they serve, and which need attention."""

from grafana_foundation_sdk.models.dashboard import Dashboard
from llm_operator.status.conditions import CONDITIONS

from charts.monitoring.panels import Column, Query, board, graph, number, table
from charts.monitoring.promql import (
    SELECTED,
    by_model,
    largest,
    or_zero,
    quantile,
    rate,
    ratio,
    series,
    total,
)
from charts.monitoring.shared_panels import (
    DESIRED,
    FAILED,
    GENERATED,
    READY,
    REQUESTS,
    failed_requests,
    generated_tokens,
    gpu_memory,
    llmdeployments,
    replicas,
    requests,
    requests_by_model,
)

MODEL_TITLES = {"namespace": "Namespace", "name": "Model"}
IS_READY = series("fairlead_operator_condition", SELECTED, 'condition="Ready"', 'status="True"')
NOT_READY = series("fairlead_operator_condition", SELECTED, 'condition="Ready"', 'status!="True"')
BAD = "|".join(row.type for row in CONDITIONS if row.is_bad)
PROBLEM = series("fairlead_operator_condition", SELECTED, f'condition=~"{BAD}"', 'status="True"')
OUTDATED = series("fairlead_operator_template_outdated", SELECTED)
WAITING = series("vllm:num_requests_waiting", SELECTED)
RUNNING = series("vllm:num_requests_running", SELECTED)
HELD = series("fairlead_router_held", SELECTED)
KV_USE = series("vllm:kv_cache_usage_perc", SELECTED)


def fleet() -> Dashboard:
    return board(
        "Fleet",
        "All LLMDeployments: which are ready, how much they serve, and which need attention.",
        [
            ("Overview", OVERVIEW),
            ("Models", [MODELS, PROBLEMS]),
            ("Traffic", TRAFFIC),
            ("Capacity", CAPACITY),
        ],
    )


OVERVIEW = [
    llmdeployments(),
    number(
        "Not ready",
        "LLMDeployments whose condition Ready is not True, those that were stopped by `replicas: 0` included.",
        "short",
        f"({or_zero(f'count({DESIRED})')}) - ({or_zero(f'sum({IS_READY})')})",
        (1, "orange"),
    ),
    number(
        "Replicas ready",
        "Ready replicas as a share of those that are wanted.",
        "percentunit",
        ratio(total(READY), total(DESIRED)),
    ),
    requests(),
    failed_requests(),
    generated_tokens(),
    number("Requests in engines", "Requests that run or wait in engines.", "short",
           or_zero(f"{total(RUNNING)} + {total(WAITING)}")),
    number(
        "Held requests", "Requests that wait in routers for a replica.", "short", or_zero(total(HELD)), (1, "orange")
    ),
]  # fmt: skip

MODELS = table(
    "Models",
    "One row for each LLMDeployment; its name links to the dashboard of the model. Ready: 1 if a request is answered. "
    "Old template: 1 if its replicas have another pod template, or image, than the operator would give them now.",
    MODEL_TITLES,
    Column("Ready", by_model(f"({total(IS_READY, 'model')} or {total(DESIRED, 'model')} * 0)")),
    Column("Replicas", by_model(total(DESIRED, "model"))),
    Column("Ready replicas", by_model(total(READY, "model"))),
    Column("Old template", by_model(total(OUTDATED, "model"))),
    Column("Requests/s", by_model(rate(REQUESTS, "model")), "reqps"),
    Column("Failed", by_model(ratio(rate(FAILED, "model"), rate(REQUESTS, "model"))), "percentunit"),
    Column(
        "First byte p95",
        by_model(quantile(0.95, "fairlead_router_time_to_first_byte_seconds", "model", matchers=SELECTED)),
        "s",
    ),
    Column("Tokens/s", by_model(rate(GENERATED, "model"))),
    Column("Waiting", by_model(total(WAITING, "model"))),
    Column("Held", by_model(total(HELD, "model"))),
    Column("KV use", by_model(largest(KV_USE, "model")), "percentunit"),
)
PROBLEMS = table(
    "Conditions that need attention",
    "Conditions of LLMDeployments that are not as they should be. The reason is in `kubectl describe llmd NAME`.",
    {**MODEL_TITLES, "condition": "Condition", "status": "Status"},
    Column(
        "",
        by_model(f"({NOT_READY} or {PROBLEM})", "condition", "status"),
    ),
)

TRAFFIC = [
    requests_by_model(),
    graph(
        "Failed requests by model",
        "Share of requests with a status of 500 or above.",
        "percentunit",
        Query("{{model}}", ratio(rate(FAILED, "model"), rate(REQUESTS, "model"))),
    ),
    graph(
        "Time to first byte by model",
        "95th percentile over all routers, from a request's arrival.",
        "s",
        Query(
            "{{model}}",
            quantile(0.95, "fairlead_router_time_to_first_byte_seconds", "model", matchers=SELECTED),
        ),
    ),
    graph(
        "Generated tokens by model",
        "Tokens per second that engines generated.",
        "short",
        Query("{{model}}", rate(GENERATED, "model")),
        stacked=True,
    ),
    graph(
        "Requests that wait",
        "In engines for a place in the batch, and in routers for a replica.",
        "short",
        Query("{{model}} in engines", total(WAITING, "model")),
        Query("{{model}} in routers", total(HELD, "model")),
    ),
    graph(
        "KV cache use by model",
        "The fullest replica's share of KV cache blocks in use.",
        "percentunit",
        Query("{{model}}", largest(KV_USE, "model")),
    ),
]

CAPACITY = [
    replicas(),
    graph(
        "Requests in the batch by model",
        "Requests that engines compute at the same time.",
        "short",
        Query("{{model}}", total(RUNNING, "model")),
        stacked=True,
    ),
    gpu_memory(),
]
