"""Why a pod is not serving, in the pod's own words."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from engine_server.contract.labels import MODEL_CONTAINER

LONGEST_MESSAGE = 500
ON_ITS_WAY = ("", "ContainerCreating", "PodInitializing")  # why a container waits in good health
# The kubelet goes back and forth between these; one name keeps the condition still.
SAME_AS = {"ErrImagePull": "ImagePullBackOff"}
MISSING = {
    "persistentvolumeclaim": ("ClaimNotFound", "PersistentVolumeClaim"),
    "secret": ("SecretNotFound", "Secret"),
}


class Problem(NamedTuple):
    reason: str
    message: str


def running(pod: Mapping[str, Any], container: str) -> bool:
    said = pod.get("status", {})
    listed = [*said.get("initContainerStatuses", []), *said.get("containerStatuses", [])]
    return any(entry["name"] == container and "running" in entry.get("state", {}) for entry in listed)


def phase(pod: Mapping[str, Any]) -> str:
    return str(pod.get("status", {}).get("phase", ""))


def condition(resource: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    listed = resource.get("status", {}).get("conditions", [])
    return next((entry for entry in listed if entry["type"] == kind), {})


def problems(pods: Iterable[Mapping[str, Any]]) -> list[Problem]:
    """What is wrong, the commonest first; each problem once, however many pods share it."""
    found = [problem for pod in pods if (problem := problem_of(pod)) is not None]
    return sorted(set(found), key=lambda problem: (-found.count(problem), problem))


def problem_of(pod: Mapping[str, Any]) -> Problem | None:
    if "deletionTimestamp" in pod["metadata"] or condition(pod, "Ready").get("status") == "True":
        return None
    status = pod.get("status", {})
    if phase(pod) == "Failed":
        return Problem(
            status.get("reason") or "PodFailed", shortened(status.get("message", "the pod failed"))
        )
    scheduled = condition(pod, "PodScheduled")
    if scheduled.get("status") == "False":
        message = scheduled.get("message", "no node takes the pod")
        return named(scheduled.get("reason", "Unschedulable"), message)
    containers = [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
    return next(filter(None, map(failure, containers)), None)


def failure(container: Mapping[str, Any]) -> Problem | None:
    """A container that waits for a bad reason, or ended badly and has not come back."""
    if container.get("ready"):
        return None
    state = container.get("state", {})
    waiting = state.get("waiting", {})
    reason = waiting.get("reason", "")
    ended = state.get("terminated") or container.get("lastState", {}).get("terminated", {})
    if ended.get("exitCode", 0) != 0 and reason in (*ON_ITS_WAY, "CrashLoopBackOff"):
        words = last_words(ended)
        if container["name"] == MODEL_CONTAINER:
            return Problem("ModelFetchFailed", shortened(f"the model could not be fetched: {words}"))
        return Problem(reason if reason == "CrashLoopBackOff" else "Restarting", shortened(words))
    return None if reason in ON_ITS_WAY else named(reason, waiting.get("message") or reason)


def named(reason: str, message: str) -> Problem:
    """What is missing, where that is why."""
    missing = re.search(r'(persistentvolumeclaim|secret) "([^"]+)" not found', message)
    if missing:
        better, kind = MISSING[missing[1]]
        return Problem(better, f"there is no {kind} {missing[2]}")
    return Problem(SAME_AS.get(reason, reason), shortened(message))


def last_words(terminated: Mapping[str, Any]) -> str:
    if terminated.get("reason") == "OOMKilled":
        return "it ran out of memory (OOMKilled)"
    lines = [line.strip() for line in terminated.get("message", "").splitlines() if line.strip()]
    return lines[-1] if lines else f"it ended with exit code {terminated.get('exitCode')} and said nothing"


def shortened(message: str) -> str:
    text = " ".join(message.split())
    return text if len(text) <= LONGEST_MESSAGE else text[: LONGEST_MESSAGE - 1] + "…"
