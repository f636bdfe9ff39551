"""The dashboard of the routers: traffic, retries, endpoints and watches."""

from grafana_foundation_sdk.models.dashboard import Dashboard

from charts.monitoring import shared_panels
from charts.monitoring.panels import Panel, Query, board, graph, number
from charts.monitoring.promql import (
    SELECTED,
    largest,
    or_zero,
    rate,
    ratio,
    series,
    total,
)

LIVE = series("fairlead_router_endpoint_live", SELECTED)
PICKS = series("fairlead_router_ring_picks_total", SELECTED)
OWN_PICKS = series("fairlead_router_ring_picks_total", SELECTED, 'result="hit"')
ROUTERS = "on (instance) fairlead_router_in_flight"


def router() -> Dashboard:
    return board(
        "Router",
        "The routers: traffic, retries, endpoints and watches.",
        [
            ("Overview", overview()),
            ("Traffic", traffic()),
            ("Faults", faults()),
            ("Endpoints", endpoints()),
            ("Routers", routers()),
        ],
    )


def overview() -> list[Panel]:
    return [
        number("Routers", "Routers that were scraped.", "short", or_zero("count(fairlead_router_in_flight)")),
        shared_panels.requests(),
        number(
            "In flight",
            "Requests in flight at all routers, held ones included.",
            "short",
            or_zero(total("fairlead_router_in_flight")),
        ),
        number(
            "Held",
            "Requests that wait for a replica.",
            "short",
            or_zero(total(series("fairlead_router_held", SELECTED))),
            (1, "orange"),
        ),
        number(
            "Endpoints out",
            "Endpoints that at least one router sends nothing.",
            "short",
            or_zero(f"count(min by (model, endpoint) ({LIVE}) == 0)"),
            (1, "orange"),
        ),
        number(
            "Interrupted",
            "Answers per second that broke off for the client.",
            "ops",
            or_zero(rate("fairlead_router_interrupted_total")),
            (0.001, "red"),
        ),
        number(
            "Own replica",
            "Share of requests that went to the replica that has their prefix or session.",
            "percentunit",
            ratio(rate(OWN_PICKS), rate(PICKS)),
        ),
        number(
            "Oldest watch",
            "Longest time since the API server was last heard of.",
            "s",
            or_zero(largest("fairlead_router_watch_age_seconds")),
            (120, "orange"),
            (180, "red"),
        ),
    ]


def traffic() -> list[Panel]:
    return [
        shared_panels.requests_by_status(),
        shared_panels.requests_by_model(),
        graph(
            "Requests without a model",
            "Per second, by status: unknown models, and requests that were refused before routing.",
            "reqps",
            Query("{{code}}", rate(series("fairlead_router_requests_total", 'model=""'), "code")),
        ),
        shared_panels.time_to_first_byte(),
        shared_panels.duration(),
        graph(
            "Tokens by key",
            "Per second, as engines reported them, by the name of the caller's key.",
            "short",
            Query("{{key}} {{kind}}", rate("fairlead_router_tokens_total", "key", "kind")),
        ),
    ]


def faults() -> list[Panel]:
    return [
        shared_panels.router_errors(),
        graph(
            "Retries",
            "Per second: requests that were sent to another replica, by the outcome of the attempt before.",
            "ops",
            Query("{{reason}}", rate("fairlead_router_retries_total", "reason")),
        ),
        graph(
            "Broken streams",
            "Per second: streams that went on at another replica, and answers that broke off for the client.",
            "ops",
            Query("resumed: {{reason}}", rate("fairlead_router_resumed_total", "reason")),
            Query("interrupted", rate("fairlead_router_interrupted_total")),
        ),
    ]


def endpoints() -> list[Panel]:
    return [
        graph(
            "Live endpoints",
            "Endpoints that every router sends requests, by model.",
            "short",
            Query(
                "{{model}}",
                total(f"min by (model, endpoint) ({LIVE})", "model"),
            ),
        ),
        graph(
            "Requests in flight by endpoint",
            "Over all routers.",
            "short",
            Query(
                "{{model}} {{endpoint}}",
                total(
                    series("fairlead_router_endpoint_in_flight", SELECTED),
                    "model",
                    "endpoint",
                ),
            ),
        ),
        graph(
            "Ejections",
            "Per second: endpoints that a router took out, by the reason.",
            "ops",
            Query("{{reason}}", rate("fairlead_router_ejections_total", "reason")),
        ),
        graph(
            "Choices by consistent hashing",
            "Share of requests that went to the key's own replica; the others went elsewhere because it was "
            "overloaded or out.",
            "percentunit",
            Query("{{model}} {{policy}}", ratio(rate(OWN_PICKS, "model", "policy"), rate(PICKS, "model", "policy"))),
        ),
        graph(
            "Held requests by model",
            "Requests that wait for a replica.",
            "short",
            Query("{{model}}", total(series("fairlead_router_held", SELECTED), "model")),
        ),
    ]  # fmt: skip


def routers() -> list[Panel]:
    return [
        graph(
            "In flight by router",
            "Requests in flight, held ones included.",
            "short",
            Query("{{pod}}", total("fairlead_router_in_flight", "pod")),
        ),
        graph(
            "Age of watches",
            "Time since the API server was last heard of, about a minute at most while all is well.",
            "s",
            Query(
                "{{kind}} {{namespace}}", largest("fairlead_router_watch_age_seconds", "kind", "namespace")
            ),
        ),
        graph(
            "Failures of watches",
            "Lists and watches that failed, per second.",
            "ops",
            Query(
                "{{kind}} {{namespace}}", rate("fairlead_router_watch_failures_total", "kind", "namespace")
            ),
        ),
        shared_panels.memory(
            ROUTERS,
            Query("{{pod}} bodies", total("fairlead_router_buffer_bytes", "pod")),
            description="Resident memory of each router, and the bodies of requests in it.",
        ),
        shared_panels.cpu(ROUTERS),
        graph(
            "Dropped log lines",
            "Lines per second that were dropped because nobody read them.",
            "ops",
            Query("{{pod}}", rate("fairlead_router_log_lines_dropped_total", "pod")),
        ),
    ]
