"""Why a pod is not serving, in the pod's own words."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from llm_operator.names import MODEL_CONTAINER

LONGEST_MESSAGE = 500
ON_ITS_WAY = ("", "ContainerCreating", "PodInitializing")  # why a container waits in good health
ENDED_BADLY = ("CrashLoopBackOff", "Restarting")
# The kubelet goes back and forth between these; one name keeps the condition still.
SAME_AS = {"ErrImagePull": "ImagePullBackOff"}


class Problem(NamedTuple):
    reason: str
    message: str


def running(pod: Mapping[str, Any], container: str) -> bool:
    said = pod.get("status", {})
    listed = [*said.get("initContainerStatuses", []), *said.get("containerStatuses", [])]
    return any(entry["name"] == container and "running" in entry.get("state", {}) for entry in listed)


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
    if status.get("phase") == "Failed":
        return Problem(
            status.get("reason") or "PodFailed", shortened(status.get("message", "the pod failed"))
        )
    scheduled = condition(pod, "PodScheduled")
    if scheduled.get("status") == "False":
        return unscheduled(scheduled)
    return next(container_problems(status), None)


def unscheduled(scheduled: Mapping[str, Any]) -> Problem:
    message = scheduled.get("message", "no node takes the pod")
    missing = re.search(r'persistentvolumeclaim "([^"]+)" not found', message)
    if missing:
        return Problem("ClaimNotFound", f"there is no PersistentVolumeClaim {missing[1]}")
    return Problem(scheduled.get("reason", "Unschedulable"), shortened(message))


def container_problems(status: Mapping[str, Any]) -> Iterator[Problem]:
    for container in status.get("initContainerStatuses", []):
        words = failure(container)
        if words and container["name"] == MODEL_CONTAINER and words.reason in ENDED_BADLY:
            yield Problem("ModelFetchFailed", f"the model could not be fetched: {words.message}")
        elif words:
            yield words
    yield from filter(None, map(failure, status.get("containerStatuses", [])))


def failure(container: Mapping[str, Any]) -> Problem | None:
    """A container that waits for a bad reason, or ended badly and has not come back."""
    if container.get("ready"):
        return None
    state = container.get("state", {})
    waiting = state.get("waiting", {})
    reason, message = waiting.get("reason", ""), waiting.get("message", "")
    ended = state.get("terminated") or container.get("lastState", {}).get("terminated")
    if ended is not None and ended.get("exitCode") != 0 and reason in (*ON_ITS_WAY, "CrashLoopBackOff"):
        return Problem(reason if reason == "CrashLoopBackOff" else "Restarting", shortened(last_words(ended)))
    if reason in ON_ITS_WAY:
        return None
    secret = re.search(r'secret "([^"]+)" not found', message)
    if secret:
        return Problem("SecretNotFound", f"there is no Secret {secret[1]}")
    return Problem(SAME_AS.get(reason, reason), shortened(message or reason))


def last_words(terminated: Mapping[str, Any]) -> str:
    if terminated.get("reason") == "OOMKilled":
        return "it ran out of memory (OOMKilled)"
    lines = [line.strip() for line in terminated.get("message", "").splitlines() if line.strip()]
    return lines[-1] if lines else f"it ended with exit code {terminated.get('exitCode')} and said nothing"


def shortened(message: str) -> str:
    text = " ".join(message.split())
    return text if len(text) <= LONGEST_MESSAGE else text[: LONGEST_MESSAGE - 1] + "…"
