"""The reasons why pods do not serve, from the pods' own status."""

from collections.abc import Iterable, Mapping
from typing import Any

from engine_server.contract.labels import MODEL_CONTAINER
from llm_operator.observed import Problem
from llm_operator.status.missing_objects import find_missing_object

LONGEST_MESSAGE = 500
# Reasons for which a healthy container waits.
HEALTHY_WAITS = ("", "ContainerCreating", "PodInitializing")
# The kubelet alternates between these; one name keeps the condition from alternating too.
SAME_AS = {"ErrImagePull": "ImagePullBackOff"}


def is_running(pod: Mapping[str, Any], container: str) -> bool:
    return any(entry["name"] == container and "running" in entry.get("state", {}) for entry in statuses(pod))


def statuses(pod: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the statuses of a pod's containers, init containers first."""
    status = pod.get("status", {})
    return [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]


def phase(pod: Mapping[str, Any]) -> str:
    return str(pod.get("status", {}).get("phase", ""))


def condition(resource: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """Return a condition of a Kubernetes object, empty if the object does not have it."""
    listed = resource.get("status", {}).get("conditions", [])
    return next((entry for entry in listed if entry["type"] == kind), {})


def problems(pods: Iterable[Mapping[str, Any]]) -> list[Problem]:
    """Return the problems of pods, the most frequent first, each once however many pods have it."""
    found = [problem for pod in pods if (problem := problem_of(pod)) is not None]
    return sorted(set(found), key=lambda problem: (-found.count(problem), problem))


def problem_of(pod: Mapping[str, Any]) -> Problem | None:
    """Return the reason why a pod does not serve; None for one that serves, starts or is being deleted."""
    if "deletionTimestamp" in pod["metadata"] or condition(pod, "Ready").get("status") == "True":
        return None
    if phase(pod) == "Failed":
        status = pod["status"]
        return Problem(
            status.get("reason") or "PodFailed", shortened(status.get("message", "the pod failed"))
        )
    scheduled = condition(pod, "PodScheduled")
    if scheduled.get("status") == "False":
        message = scheduled.get("message", "no node takes the pod")
        return waiting_problem(scheduled.get("reason", "Unschedulable"), message)
    return next(filter(None, map(container_problem, statuses(pod))), None)


def container_problem(container: Mapping[str, Any]) -> Problem | None:
    """Return the reason of a container that waits unhealthily, or that failed and is not running again."""
    if container.get("ready"):
        return None
    state = container.get("state", {})
    waiting = state.get("waiting", {})
    reason = waiting.get("reason", "")
    ended = state.get("terminated") or container.get("lastState", {}).get("terminated", {})
    if ended.get("exitCode", 0) != 0 and reason in (*HEALTHY_WAITS, "CrashLoopBackOff"):
        return exit_problem(container["name"], reason, ended)
    return None if reason in HEALTHY_WAITS else waiting_problem(reason, waiting.get("message") or reason)


def exit_problem(name: str, reason: str, terminated: Mapping[str, Any]) -> Problem:
    """Return the problem of a container that failed, with the last line that it printed."""
    line = last_line(terminated)
    if name == MODEL_CONTAINER:
        return Problem("ModelFetchFailed", shortened(f"the model could not be fetched: {line}"))
    return Problem(reason if reason == "CrashLoopBackOff" else "Restarting", shortened(line))


def waiting_problem(reason: str, message: str) -> Problem:
    """Return the problem of a pod or container that waits for `reason`."""
    return find_missing_object(message) or Problem(SAME_AS.get(reason, reason), shortened(message))


def last_line(terminated: Mapping[str, Any]) -> str:
    if terminated.get("reason") == "OOMKilled":
        return "it ran out of memory (OOMKilled)"
    lines = [line.strip() for line in terminated.get("message", "").splitlines() if line.strip()]
    return lines[-1] if lines else f"it ended with exit code {terminated.get('exitCode')} and printed nothing"


def shortened(message: str) -> str:
    text = " ".join(message.split())
    return text if len(text) <= LONGEST_MESSAGE else text[: LONGEST_MESSAGE - 1] + "…"
