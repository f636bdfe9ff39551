"""The alerts, as Prometheus' rules. Each has a section of the same name in docs/monitoring.md."""

from dataclasses import dataclass
from typing import Any

from charts.monitoring.promql import largest, rate, ratio, series, total, with_namespace

REPLICA = ("model", "pod")
# The objective for requests: the share that may fail.
ERROR_BUDGET = 0.001
FAILED = series("fairlead_router_requests_total", 'code=~"5.."', 'model!=""')
REQUESTS = series("fairlead_router_requests_total", 'model!=""')
REJECTED = series("fairlead_router_rejected_total", 'sender="engine"')
WAITING = total("vllm:num_requests_waiting", "model")
STALLED = series("fairlead_operator_condition", 'condition="Stalled"', 'status="True"')
RECONCILE_ERRORS = series("fairlead_operator_reconciles_total", 'outcome="error"')
DESIRED = total("fairlead_operator_desired_replicas", "model")
READY = total("fairlead_operator_ready_replicas", "model")


@dataclass(frozen=True)
class Alert:
    """An alerting rule. `expression` must hold for the time `hold`; labels of its series name what is affected."""

    name: str
    expression: str
    hold: str
    severity: str
    summary: str
    description: str

    def rule(self) -> dict[str, Any]:
        return {
            "alert": self.name,
            "expr": self.expression,
            "for": self.hold,
            "labels": {"severity": self.severity},
            "annotations": {"summary": self.summary, "description": self.description},
        }


def burns(factor: float, long_window: str, short_window: str) -> str:
    """Return the models that use up their error budget `factor` times as fast as allowed, over both windows."""
    limit = f"{factor * ERROR_BUDGET:g}"
    shares = (
        ratio(
            rate(FAILED, "model", window=window),
            rate(REQUESTS, "model", window=window),
        )
        for window in (long_window, short_window)
    )
    return with_namespace(" and ".join(f"({share}) > {limit}" for share in shares))


BURN = "{{ $labels.model }} fails {{ $value | humanizePercentage }} of its requests"
ALERTS = [
    Alert(
        "FairleadNoReadyReplica",
        with_namespace(f"{DESIRED} > 0 unless {READY} > 0"),
        "10m",
        "critical",
        "{{ $labels.model }} has no ready replica",
        "{{ $value }} replicas are wanted and none has been ready for 10 minutes. Requests wait, or are refused.",
    ),
    Alert(
        "FairleadEngineHung",
        with_namespace(f"{largest('fairlead:core_stalled_seconds', *REPLICA)} > 120"),
        "1m",
        "critical",
        "The engine {{ $labels.namespace }}/{{ $labels.pod }} hangs",
        "Its core has made no progress for {{ $value | humanizeDuration }}. The pod is restarted after --hang-timeout.",
    ),
    Alert(
        "FairleadQueueGrowing",
        with_namespace(f"{WAITING} > 10 and {total('deriv(vllm:num_requests_waiting[10m])', 'model')} > 0"),
        "10m",
        "warning",
        "The queue of {{ $labels.model }} grows",
        "{{ $value }} requests wait in its engines, and more arrive than are answered.",
    ),
    Alert(
        "FairleadRequestsHeld",
        with_namespace(f"{total('fairlead_router_held', 'model')} > 0"),
        "15m",
        "warning",
        "Requests for {{ $labels.model }} wait for a replica",
        "For 15 minutes routers have held requests, {{ $value }} now, because no replica is ready.",
    ),
    Alert(
        "FairleadEngineRejected",
        f"{rate(REJECTED, 'reason', window='5m')} > 0.1",
        "15m",
        "warning",
        "Routers reject what engines send: {{ $labels.reason }}",
        'For 15 minutes they have rejected {{ printf "%.1f" $value }} reports or answers of engines a second.',
    ),
    Alert(
        "FairleadKVCacheFull",
        with_namespace(f"{largest('vllm:kv_cache_usage_perc', *REPLICA)} > 0.95"),
        "10m",
        "warning",
        "The KV cache of {{ $labels.namespace }}/{{ $labels.pod }} is full",
        "{{ $value | humanizePercentage }} of its blocks are in use. Further requests wait or are preempted.",
    ),
    Alert(
        "FairleadSlowColdStart",
        with_namespace(
            largest('fairlead:startup_seconds{phase="ready"}', *REPLICA)
            + " > 600 and "
            + f"time() - {largest('process_start_time_seconds', *REPLICA)} < 7200"
        ),
        "0m",
        "warning",
        "{{ $labels.namespace }}/{{ $labels.pod }} took {{ $value | humanizeDuration }} to start",
        "The process took more than 10 minutes to serve. Requests wait that long when the model scales up.",
    ),
    Alert(
        "FairleadErrorBudgetBurnsFast",
        burns(14.4, "1h", "5m"),
        "2m",
        "critical",
        BURN,
        "At this rate, over an hour and over 5 minutes, the error budget of a month (0.1 %) lasts two days.",
    ),
    Alert(
        "FairleadErrorBudgetBurns",
        burns(6, "6h", "30m"),
        "15m",
        "warning",
        BURN,
        "At this rate, over 6 hours and over 30 minutes, the error budget of a month (0.1 %) lasts five days.",
    ),
    Alert(
        "FairleadNoLeader",
        "sum(fairlead_operator_leader) == 0",
        "5m",
        "warning",
        "No operator holds the Lease",
        "Operators run, but none works: changes of LLMDeployments have no effect.",
    ),
    Alert(
        "FairleadStalled",
        with_namespace(f"{largest(STALLED, 'model')} == 1"),
        "5m",
        "warning",
        "{{ $labels.model }} cannot be brought to its spec",
        "It is refused, or a rollout has passed its deadline: somebody must change something. Former replicas go on.",
    ),
    Alert(
        "FairleadReconcilesFail",
        f"{rate(RECONCILE_ERRORS, window='5m')} > 0.05",
        "15m",
        "warning",
        "The operator's reconciles fail",
        'For 15 minutes {{ printf "%.1f" $value }} a second have failed: edits may have no effect.',
    ),
    Alert(
        "FairleadRouterUnknown",
        f"{largest('fairlead_operator_unknown_routers')} > 0",
        "5m",
        "warning",
        "Routers do not tell the operator their demand",
        "For 5 minutes {{ $value }} have not answered, so that autoscaled models keep replicas that nobody needs.",
    ),
    Alert(
        "FairleadWatchStale",
        "max by (pod, kind, namespace) (fairlead_router_watch_age_seconds) > 180 or "
        "max by (pod, resource, namespace) (fairlead_operator_watch_age_seconds) > 180",
        "2m",
        "warning",
        "{{ $labels.pod }} has heard nothing of the API server for {{ $value | humanizeDuration }}",
        "It works with the state that it knew then: changes of the cluster have no effect.",
    ),
]


# Without monitors there never are any series.
ABSENCE_ALERTS = [
    Alert(
        "FairleadOperatorAbsent",
        "absent(fairlead_operator_leader)",
        "5m",
        "warning",
        "No operator is monitored",
        "For 5 minutes no metrics have come from any: if none runs, nothing is scaled, changed or repaired.",
    ),
    Alert(
        "FairleadRoutersAbsent",
        "absent(fairlead_router_watch_age_seconds)",
        "5m",
        "critical",
        "No router is monitored",
        "For 5 minutes no metrics have come from any: if none runs, no request is answered.",
    ),
]


def groups() -> dict[str, Any]:
    """Return the content of a file of rules. The chart has the second group only with its monitors."""
    by_name = {"fairlead": ALERTS, "fairlead-absence": ABSENCE_ALERTS}
    return {
        "groups": [
            {"name": name, "rules": [alert.rule() for alert in alerts]} for name, alerts in by_name.items()
        ]
    }
