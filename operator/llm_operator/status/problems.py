"""The reasons why pods do not serve, from the pods' own status."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from engine_server.contract.cluster.fetch_container import UNUSABLE
from engine_server.contract.cluster.labels import MODEL_CONTAINER
from engine_server.contract.cluster.memory_shortage import find_shortage
from engine_server.contract.cluster.model_folder import reports_no_model
from engine_server.contract.cluster.reasons import Reason
from llm_operator.observed import Problem
from llm_operator.status.messages import LONGEST_TEXT, bounded
from llm_operator.status.missing_objects import find_missing_object
from llm_operator.status.scheduling import scheduling_problem

# Reasons for which a healthy container waits.
HEALTHY_WAITS = ("", "ContainerCreating", "PodInitializing")
# Answers of a hub to a token that is missing or has no access, in the words of `fairlead fetch` and of HTTP libraries.
DENIED = re.compile(r"must be granted to you|401 Unauthorized|403 Forbidden|40[13] Client Error")
# The kubelet alternates between these; one name keeps the condition from alternating too.
SAME_AS = {"ErrImagePull": Reason.IMAGE_PULL_BACK_OFF}


def is_running(pod: Mapping[str, Any], container: str) -> bool:
    return any(entry["name"] == container and "running" in entry.get("state", {}) for entry in statuses(pod))


def is_fetching(pods: Iterable[Mapping[str, Any]]) -> bool:
    """Return True if a pod fetches the model for itself."""
    return any(is_running(pod, MODEL_CONTAINER) for pod in pods)


def statuses(pod: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the statuses of a pod's containers, init containers first."""
    status = pod.get("status", {})
    return [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]


def restarts(pods: Iterable[Mapping[str, Any]]) -> int:
    """Return how often containers of the pods were restarted."""
    return sum(entry.get("restartCount", 0) for pod in pods for entry in statuses(pod))


def phase(pod: Mapping[str, Any]) -> str:
    return str(pod.get("status", {}).get("phase", ""))


def condition(resource: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """Return a condition of a Kubernetes object, empty if the object does not have it."""
    listed = resource.get("status", {}).get("conditions", [])
    return next((entry for entry in listed if entry["type"] == kind), {})


def problems(pods: Iterable[Mapping[str, Any]], pod_spec: Mapping[str, Any]) -> list[Problem]:
    """Return the problems of pods, the most frequent first, each once however many pods have it.

    pod_spec: the spec that their template asks for.
    """
    found = [problem for pod in pods if (problem := problem_of(pod, pod_spec)) is not None]
    return sorted(set(found), key=lambda problem: (-found.count(problem), problem))


def problem_of(pod: Mapping[str, Any], pod_spec: Mapping[str, Any]) -> Problem | None:
    """Return the reason why a pod does not serve; None for one that serves, starts or is being deleted."""
    if "deletionTimestamp" in pod["metadata"] or condition(pod, "Ready").get("status") == "True":
        return None
    if phase(pod) == "Failed":
        status = pod["status"]
        return Problem(status.get("reason") or Reason.POD_FAILED, status.get("message", "the pod failed"))
    scheduled = condition(pod, "PodScheduled")
    if scheduled.get("status") == "False":
        message = bounded(scheduled.get("message", "no node takes the pod"))
        if scheduled.get("reason") == Reason.SCHEDULING_GATED:
            return Problem(Reason.SCHEDULING_GATED, message)
        return find_missing_object(message) or scheduling_problem(message, pod_spec)
    return next(filter(None, map(container_problem, statuses(pod))), None)


def container_problem(container: Mapping[str, Any]) -> Problem | None:
    """Return the reason of a container that waits unhealthily, or that failed and is not running again."""
    if container.get("ready"):
        return None
    state = container.get("state", {})
    waiting = state.get("waiting", {})
    reason = waiting.get("reason", "")
    ended = state.get("terminated") or container.get("lastState", {}).get("terminated", {})
    if ended.get("exitCode", 0) != 0 and reason in (*HEALTHY_WAITS, Reason.CRASH_LOOP):
        return exit_problem(container["name"], ended)
    return (
        None
        if reason in HEALTHY_WAITS
        else waiting_problem(reason, bounded(waiting.get("message") or reason))
    )


def exit_problem(name: str, terminated: Mapping[str, Any]) -> Problem:
    """Return the problem of a container that failed, with the last line that it printed."""
    line = last_line(terminated)
    if name == MODEL_CONTAINER:
        is_unusable = terminated.get("exitCode") == UNUSABLE
        return unusable_problem(line) if is_unusable else fetch_problem(line)
    text = last_words(terminated)
    if reports_no_model(text):
        return Problem(Reason.MODEL_MISSING, line)
    shortage = find_shortage(text)
    if shortage is None:
        return Problem(Reason.CRASH_LOOP, line)
    kind = "GPU memory" if shortage.is_on_gpu else "memory"
    sizes = f"the engine needs {shortage.needed} MiB of {kind}, and {shortage.available} MiB are available"
    return Problem(
        Reason.INSUFFICIENT_GPU_MEMORY if shortage.is_on_gpu else Reason.INSUFFICIENT_MEMORY,
        f"{sizes}: {line}",
    )


def fetch_problem(line: str) -> Problem:
    """Return the problem of a fetch that failed, from the last line that it printed."""
    if DENIED.search(line):
        return Problem(
            Reason.MODEL_ACCESS_DENIED,
            "the hub denies access to the model: accept its terms, and set spec.model.secretRef to a token that may "
            f"read it: {line}",
        )
    return Problem(Reason.MODEL_FETCH_FAILED, f"the model could not be fetched: {line}")


def unusable_model(pods: Iterable[Mapping[str, Any]]) -> str:
    """Return the last line of a fetch that found that no repetition makes the model usable; "" if none did."""
    for container in (each for pod in pods for each in statuses(pod) if each["name"] == MODEL_CONTAINER):
        for state in (container.get("state", {}), container.get("lastState", {})):
            ended = state.get("terminated") or {}
            if ended.get("exitCode") == UNUSABLE:
                return last_line(ended)
    return ""


def unusable_problem(line: str) -> Problem:
    """Return the problem of a model that no repetition of its fetch makes usable."""
    return Problem(Reason.MODEL_UNUSABLE, f"the model cannot be used: {line}")


def waiting_problem(reason: str, message: str) -> Problem:
    """Return the problem of a pod or container that waits for `reason`."""
    return find_missing_object(message) or Problem(SAME_AS.get(reason, reason), message)


def last_words(terminated: Mapping[str, Any]) -> str:
    """Return the end of what a container printed: at most as much as the kubelet keeps."""
    return str(terminated.get("message", ""))[-LONGEST_TEXT:]


def last_line(terminated: Mapping[str, Any]) -> str:
    if terminated.get("reason") == "OOMKilled":
        return "it ran out of memory (OOMKilled)"
    lines = [line for line in last_words(terminated).splitlines() if line.strip()]
    return (
        bounded(lines[-1])
        if lines
        else f"it ended with exit code {terminated.get('exitCode')} and printed nothing"
    )
