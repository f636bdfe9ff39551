"""The last start of a replica: the seconds of each phase, from the pod's timestamps and the engine's own report."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from engine_server.contract.cluster.labels import ENGINE_CONTAINER, MODEL_CONTAINER
from llm_operator.api.status import Start
from llm_operator.observed import Manifest, Observed, Replica, StartReport
from llm_operator.status.problems import condition, statuses


def last_start(observed: Observed) -> Start | None:
    """Return the start that is being made or was made last; None before a node took a pod."""
    pod = last_started(observed.pods)
    if pod is None:
        return None
    started = started_at(pod)
    loaded, warmed = engine_seconds(pod, observed)
    # After a restart of the container alone, nothing was scheduled, pulled or fetched.
    is_restarted = container(pod, ENGINE_CONTAINER).get("restartCount")
    before = {} if is_restarted else seconds_before_engine(pod)
    if not started and before.get("scheduled") is None:
        return None
    return Start(
        pod=pod["metadata"]["name"],
        started_at=started or None,
        scheduled=before.get("scheduled"),
        pulled=before.get("pulled"),
        fetched=before.get("fetched"),
        loaded=loaded,
        warmed=warmed,
        ready=remaining(seconds_between(started, ready_since(pod)), loaded, warmed),
    )


def replica_to_ask(observed: Observed) -> Replica | None:
    """Return the replica whose report is missing or changes: one that starts, or that has just become ready."""
    pod = last_started(observed.pods)
    if pod is None:
        return None
    started = started_at(pod)
    address = pod.get("status", {}).get("podIP", "")
    if not started or not address:
        return None
    replica = Replica(pod["metadata"]["name"], started, address)
    report = observed.start_report
    if report is not None and report.replica == replica and report.is_final:
        return None
    is_known = engine_seconds(pod, observed)[1] is not None
    return None if is_known and ready_since(pod) else replica


def current_report(observed: Observed) -> StartReport | None:
    """Return the report of a start, unless its replica has ended or was started again since."""
    report = observed.start_report
    if report is None:
        return None
    is_current = any(is_engine_of(pod, report.replica) for pod in observed.pods)
    return report if is_current else None


def is_engine_of(pod: Manifest, replica: Replica) -> bool:
    """Return True if a replica is the running engine of a pod."""
    return (pod["metadata"]["name"], started_at(pod)) == (replica.pod, replica.started_at)


def started_at(pod: Manifest) -> str:
    """Return the time at which the engine that runs in a pod was started; empty if none runs."""
    running = container(pod, ENGINE_CONTAINER).get("state", {}).get("running", {})
    return str(running.get("startedAt", ""))


def last_started(pods: Iterable[Manifest]) -> Manifest | None:
    """Return the pod that became ready last; if none is ready, the oldest that starts."""
    current = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
    ready = [pod for pod in current if ready_since(pod)]
    if ready:
        return max(ready, key=lambda pod: (ready_since(pod), pod["metadata"]["name"]))
    return min(
        current,
        key=lambda pod: (pod["metadata"].get("creationTimestamp", ""), pod["metadata"]["name"]),
        default=None,
    )


def engine_seconds(pod: Manifest, observed: Observed) -> tuple[int | None, int | None]:
    """Return the seconds of loading and of warming up: as the engine reports them, else as reported before."""
    report, before = observed.start_report, observed.reported.get("start", {})
    if report is not None and is_engine_of(pod, report.replica):
        load, warm_up = report.seconds.get("load"), report.seconds.get("warm up")
        if load is not None:
            loaded = round(report.seconds.get("import", 0.0) + load)
            return loaded, None if warm_up is None else round(warm_up)
    started = started_at(pod)
    if started and (before.get("pod"), before.get("startedAt")) == (pod["metadata"]["name"], started):
        return before.get("loaded"), before.get("warmed")
    return None, None


def seconds_before_engine(pod: Manifest) -> dict[str, int | None]:
    """Return the seconds of the phases before the engine's container runs."""
    created = pod["metadata"].get("creationTimestamp", "")
    is_scheduled = condition(pod, "PodScheduled").get("status") == "True"
    scheduled = condition(pod, "PodScheduled").get("lastTransitionTime", "") if is_scheduled else ""
    model = container(pod, MODEL_CONTAINER)
    first = next(iter(statuses(pod)), {})
    return {
        "scheduled": seconds_between(created, scheduled),
        "pulled": None if first.get("restartCount") else seconds_between(scheduled, span(first)[0]),
        "fetched": seconds_between(*span(model)),
    }


def remaining(total: int | None, *parts: int | None) -> int | None:
    return None if total is None else max(0, total - sum(part or 0 for part in parts))


def container(pod: Manifest, name: str) -> dict[str, Any]:
    return next((entry for entry in statuses(pod) if entry["name"] == name), {})


def span(entry: dict[str, Any]) -> tuple[str, str]:
    """Return the times at which a container started and ended, empty if it has not."""
    state = entry.get("state", {})
    ended = state.get("terminated", {})
    started: str = (state.get("running") or ended).get("startedAt") or ""
    return started, ended.get("finishedAt") or ""


def ready_since(pod: Manifest) -> str:
    """Return the time at which a pod became ready; empty if it is not."""
    found = condition(pod, "Ready")
    return str(found.get("lastTransitionTime", "")) if found.get("status") == "True" else ""


def seconds_between(start: str, end: str) -> int | None:
    if not start or not end:
        return None
    return max(0, round((datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()))
