"""The dashboard of the operator: conditions, reconciles, calls to the API server and watches."""

from grafana_foundation_sdk.models.dashboard import Dashboard

from charts.monitoring import shared_panels
from charts.monitoring.panels import Column, Panel, Query, board, graph, number, table
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

CONDITIONS = series("fairlead_operator_condition", SELECTED)
RECONCILES = "fairlead_operator_reconciles_total"
FAILED_RECONCILES = series(RECONCILES, 'outcome="error"')
CALLS = "fairlead_operator_api_requests_total"
FAILED_CALLS = series(CALLS, 'code!~"2..|404|409"')
OPERATORS = "on (instance) fairlead_operator_leader"


def operator() -> Dashboard:
    return board(
        "Operator",
        "The operator: conditions, reconciles, calls to the API server and watches.",
        [
            ("Overview", overview()),
            ("LLMDeployments", llmdeployments()),
            ("Reconciles", reconciles()),
            ("API server", api_server()),
            ("Process", process()),
        ],
    )


def overview() -> list[Panel]:
    return [
        number(
            "Leaders",
            "Operators that hold the Lease: 1, or one for each release.",
            "short",
            or_zero(total("fairlead_operator_leader")),
        ),
        number("Standing by", "Operators that wait for the Lease.", "short",
               or_zero("count(fairlead_operator_leader == 0)")),
        shared_panels.llmdeployments(),
        number(
            "Queued",
            "LLMDeployments that wait for a reconcile.",
            "short",
            or_zero(total("fairlead_operator_queued")),
            (100, "orange"),
        ),
        number(
            "Failed reconciles",
            "Share of reconciles that ended with an error.",
            "percentunit",
            or_zero(ratio(rate(FAILED_RECONCILES), rate(RECONCILES))),
            (0.1, "orange"),
        ),
        number("API calls", "Calls to the API server per second.", "reqps", or_zero(rate(CALLS))),
        number(
            "Failed API calls",
            "Calls per second without an answer, or with an error other than 404 and 409.",
            "reqps",
            or_zero(rate(FAILED_CALLS)),
            (0.1, "orange"),
        ),
        number(
            "Interrupted watches",
            "Longest time since a watch was interrupted; 0 while all are open.",
            "s",
            or_zero(largest("fairlead_operator_watch_age_seconds")),
            (120, "orange"),
            (180, "red"),
        ),
    ]  # fmt: skip


def llmdeployments() -> list[Panel]:
    return [
        graph(
            "Conditions that are true",
            "LLMDeployments by condition.",
            "short",
            Query(
                "{{condition}}",
                total(series("fairlead_operator_condition", SELECTED, 'status="True"'), "condition"),
            ),
            span=12,
        ),
        graph(
            "Conditions that are false",
            "LLMDeployments by condition.",
            "short",
            Query(
                "{{condition}}",
                total(series("fairlead_operator_condition", SELECTED, 'status!="True"'), "condition"),
            ),
            span=12,
        ),
        table(
            "Conditions",
            "The current status of each condition.",
            {
                "namespace": "Namespace",
                "name": "Model",
                "condition": "Condition",
                "status": "Status",
            },
            Column("", by_model(CONDITIONS, "condition", "status")),
        ),
    ]


def reconciles() -> list[Panel]:
    return [
        graph(
            "Reconciles",
            "Per second, by outcome; one that failed is repeated.",
            "ops",
            Query("{{outcome}}", rate(RECONCILES, "outcome")),
            stacked=True,
        ),
        graph(
            "Duration of a reconcile",
            "Calls to the API server included.",
            "s",
            Query("p50", quantile(0.5, "fairlead_operator_reconcile_seconds", matchers="")),
            Query("p99", quantile(0.99, "fairlead_operator_reconcile_seconds", matchers="")),
        ),
        graph(
            "Wait for a reconcile",
            "From the first event that asks for a reconcile to its start.",
            "s",
            Query("p50", quantile(0.5, "fairlead_operator_queue_seconds", matchers="")),
            Query("p99", quantile(0.99, "fairlead_operator_queue_seconds", matchers="")),
        ),
        graph(
            "Queue",
            "LLMDeployments that wait for a reconcile.",
            "short",
            Query("{{pod}}", total("fairlead_operator_queued", "pod")),
        ),
    ]


def api_server() -> list[Panel]:
    return [
        graph(
            "API calls by verb",
            "Per second.",
            "reqps",
            Query("{{verb}}", rate(CALLS, "verb")),
            stacked=True,
        ),
        graph(
            "API calls by status",
            "Per second; `none`: without an answer.",
            "reqps",
            Query("{{code}}", rate(CALLS, "code")),
            stacked=True,
        ),
        graph(
            "Restarts of watches",
            "Per second; the API server ends each watch after some minutes.",
            "ops",
            Query(
                "{{resource}} {{namespace}}",
                rate("fairlead_operator_watch_restarts_total", "resource", "namespace"),
            ),
        ),
        graph(
            "Interrupted watches",
            "Time since each watch was interrupted; 0 while it is open.",
            "s",
            Query(
                "{{resource}} {{namespace}}",
                largest("fairlead_operator_watch_age_seconds", "resource", "namespace"),
            ),
        ),
        graph(
            "Missing namespaces",
            "1 for a watched namespace that does not exist or may not be read.",
            "short",
            Query("{{namespace}}", largest("fairlead_operator_namespace_missing", "namespace")),
        ),
    ]


def process() -> list[Panel]:
    return [
        graph(
            "Leader",
            "1 for the operator that holds the Lease.",
            "short",
            Query("{{pod}}", largest("fairlead_operator_leader", "pod")),
        ),
        shared_panels.memory(OPERATORS),
        shared_panels.cpu(OPERATORS),
    ]
