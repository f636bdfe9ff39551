"""The reasons why a node does not create the containers of a pod, from the Warnings about it.

Kubelet, attach controller and container runtime report them in prose alone. The known words are those of Kubernetes
1.30 to 1.35, of containerd and of CRI-O; a Warning in other words is reported as it is, under its own reason.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from engine_server.contract.cluster.reasons import Reason, needs_person
from llm_operator.observed import Manifest, Observed, Problem, Warned
from llm_operator.status.missing_objects import find_missing_object
from llm_operator.status.problems import HEALTHY_WAITS, condition, phase, statuses
from llm_operator.status.rollout import is_of
from llm_operator.status.scheduling import claimed_volume, named

# The kubelet's summary of failures that have Warnings of their own, and its words for a cache that is not filled yet.
VAGUE = ("Unable to attach or mount volumes", "timed out waiting for the condition")
VOLUME = re.compile(r'for volume "([^"]+)"')
MISSING_KEY = re.compile(r"references non-existent (config|secret) key: ([-._a-zA-Z0-9]+)")
KINDS = {"config": ("configMap", "ConfigMap"), "secret": ("secret", "Secret")}
MISSING_HANDLER = re.compile(
    r'no runtime for "([^"]+)" is configured|failed to find runtime handler ([-.a-zA-Z0-9]+)'
)


def uncreated(pods: Iterable[Manifest]) -> list[Manifest]:
    """Return the pods that have a node without a sandbox or volumes: no container of theirs was ever created."""
    return [
        pod
        for pod in pods
        if pod.get("spec", {}).get("nodeName")
        and phase(pod) == "Pending"
        and "deletionTimestamp" not in pod["metadata"]
        and condition(pod, "PodReadyToStartContainers").get("status") != "True"
        and all(map(is_waiting_first, statuses(pod)))
    ]


def is_waiting_first(container: Mapping[str, Any]) -> bool:
    """Return True for a container that has not been created yet, for no reason that its status has."""
    state = container.get("state", {})
    return (
        not container.get("lastState")
        and set(state) <= {"waiting"}
        and state.get("waiting", {}).get("reason", "") in HEALTHY_WAITS
    )


def creation_problems(observed: Observed, template: Mapping[str, Any]) -> list[Problem]:
    """Return the problems of pods whose containers are not created, those that need a person first.

    template: the spec of the Deployment's pods.
    """
    found = {
        creation_problem(warned, pod_spec_of(pod, observed, template))
        for pod in uncreated(observed.pods)
        for warned in observed.warnings.get(pod["metadata"].get("uid", ""), ())
    }
    explained = {problem for problem in found if problem is not None}
    specific = {each for each in explained if not any(words in each.message for words in VAGUE)} or explained
    return sorted(specific, key=lambda problem: (not needs_person(problem.reason), problem))


def pod_spec_of(pod: Manifest, observed: Observed, template: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the spec of a pod, in which the volumes are its own: a former template's may be others."""
    own = (each for each in observed.replica_sets if is_of(pod, each))
    spec: Mapping[str, Any] = next(own, {}).get("spec", {}).get("template", {}).get("spec") or template
    return spec


def creation_problem(warned: Warned, pod_spec: Mapping[str, Any]) -> Problem | None:
    """Return the problem that a Warning tells; None for one that is not about mounts, volumes and sandboxes."""
    reason, message = warned
    match reason:
        case Reason.FAILED_ATTACH_VOLUME if "Multi-Attach" in message:
            text = f"{claimed_volume(pod_spec)} is in use on another node: {message}"
            return Problem(Reason.VOLUME_IN_USE, text)
        case Reason.FAILED_MOUNT | Reason.FAILED_ATTACH_VOLUME:
            return (
                find_missing_object(message)
                or missing_key(message, pod_spec)
                or mount_problem(warned, pod_spec)
            )
        case Reason.FAILED_CREATE_POD_SANDBOX:
            return missing_handler(message) or Problem(reason, message)
    return None


def missing_key(message: str, pod_spec: Mapping[str, Any]) -> Problem | None:
    """Return the problem of a key that a ConfigMap or a Secret lacks. The message names the volume alone."""
    found = MISSING_KEY.search(message)
    if found is None:
        return None
    field, kind = KINDS[found[1]]
    names = [
        str(source.get("name") or source.get("secretName"))
        for source in sources(message, pod_spec, field)
        if any(item.get("key") == found[2] for item in source.get("items") or ())
    ]
    owner = named(f"the {kind}", f"one of the {kind}s", names) if names else f"a {kind} of the pod"
    return Problem(Reason.KEY_NOT_FOUND, f"{owner} has no key {found[2]}")


def sources(message: str, pod_spec: Mapping[str, Any], field: str) -> Sequence[Mapping[str, Any]]:
    """Return the ConfigMaps or Secrets, by their field, of the volume that a message is about."""
    volume = VOLUME.search(message)
    return [
        content[field]
        for each in pod_spec.get("volumes") or ()
        if volume is not None and each.get("name") == volume[1]
        for content in (each, *((each.get("projected") or {}).get("sources") or ()))
        if content.get(field)
    ]


def mount_problem(warned: Warned, pod_spec: Mapping[str, Any]) -> Problem:
    """Return the problem of a volume that cannot be mounted, with the claim: the message has the volume's own name."""
    volume = VOLUME.search(warned.message)
    own = {each.get("name") for each in pod_spec.get("volumes") or ()}
    if volume is None or volume[1] in own:
        return Problem(warned.reason, warned.message)
    return Problem(warned.reason, f"{claimed_volume(pod_spec)} cannot be mounted: {warned.message}")


def missing_handler(message: str) -> Problem | None:
    found = MISSING_HANDLER.search(message)
    if found is None:
        return None
    handler = found[1] or found[2]
    return Problem(
        Reason.RUNTIME_HANDLER_NOT_FOUND,
        f"the node has no runtime {handler}, which the runtime class of the pod (podTemplate.spec) asks for",
    )
