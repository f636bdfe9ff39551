"""What an LLMDeployment reports about itself. No I/O."""

from collections.abc import Iterable, Iterator
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from llm_operator.names import ENGINE_CONTAINER, MODEL_CONTAINER, selector_text
from llm_operator.observed import Manifest, Observed
from llm_operator.reasons import Problem, condition, problems, running
from llm_operator.schema import Count, Section, about

BY_TYPE = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}


class Condition(Section, frozen=True):
    type: Annotated[str, about("Ready, Progressing, Degraded or NameTaken.")]
    status: Annotated[Literal["True", "False", "Unknown"], about("Whether it is so.")]
    reason: Annotated[str, about("One word for programs.")]
    message: Annotated[str, about("A sentence for people.")]
    last_transition_time: Annotated[
        str, Meta(extra_json_schema={"format": "date-time"}), about("When the status last changed.")
    ]
    observed_generation: Annotated[int, about("The generation that it speaks of.")] = 0

    @property
    def is_bad(self) -> bool:
        return self.type in ("Degraded", "NameTaken") and self.status == "True"


class Status(Section, frozen=True):
    observed_generation: Annotated[int, about("The generation that this speaks of.")] = 0
    replicas: Annotated[Count, about("Replicas that there are.")] = 0
    ready_replicas: Annotated[Count, about("Replicas that answer.")] = 0
    selector: Annotated[str, about("Finds the pods; for whoever scales.")] = ""
    conditions: Annotated[
        tuple[Condition, ...], Meta(extra_json_schema=BY_TYPE), about("What is so, and why.")
    ] = ()

    def condition(self, kind: str) -> Condition | None:
        return next((entry for entry in self.conditions if entry.type == kind), None)

    def as_manifest(self) -> Manifest:
        manifest: Manifest = msgspec.json.decode(msgspec.json.encode(self))
        return manifest


class Finding(NamedTuple):
    type: str
    holds: bool
    reason: str
    message: str


class Counts(msgspec.Struct, frozen=True, rename="camel"):
    """Replicas as the Deployment's status counts them."""

    replicas: int = 0
    updated_replicas: int = 0
    ready_replicas: int = 0
    observed_generation: int = 0


def blocked(workload: Manifest) -> Problem | None:
    """Why the Deployment cannot make pods, or why it gave up waiting for them."""
    failure = condition(workload, "ReplicaFailure")
    if failure.get("status") == "True":
        return Problem(failure.get("reason", "ReplicaFailure"), failure.get("message", ""))
    if condition(workload, "Progressing").get("reason") == "ProgressDeadlineExceeded":
        return Problem("ProgressDeadlineExceeded", "the replicas were not ready within the deadline")
    return None


def status(name: str, generation: int, wanted: int, observed: Observed) -> Status:
    counts = msgspec.convert(observed.workload.get("status", {}), Counts)
    found = (observed.refusal, *pod_problems(counts, wanted, observed), blocked(observed.workload))
    faults = [problem for problem in found if problem]
    findings = [ready(counts, wanted, faults, observed.pods), progressing(counts, wanted, observed)]
    findings += [degraded(faults), *name_taken(observed)]
    return Status(
        observed_generation=generation,
        replicas=counts.replicas,
        ready_replicas=counts.ready_replicas,
        selector=selector_text(name),
        conditions=tuple(dated(finding, generation, observed) for finding in findings),
    )


def pod_problems(counts: Counts, wanted: int, observed: Observed) -> list[Problem]:
    """Pods that failed for good, as evicted ones do, count only until others have replaced them."""
    replaced = counts.ready_replicas >= wanted
    return problems(
        pod for pod in observed.pods if not (replaced and pod.get("status", {}).get("phase") == "Failed")
    )


def ready(counts: Counts, wanted: int, faults: list[Problem], pods: Iterable[Manifest]) -> Finding:
    """True means that a request to the router is answered."""
    if wanted and counts.ready_replicas:
        message = f"{counts.ready_replicas} of {wanted} replicas answer"
        return Finding("Ready", True, "ReplicasReady", message)
    if faults:
        return Finding("Ready", False, *faults[0])
    if not wanted:
        return Finding("Ready", False, "ScaledToZero", "no replica is wanted")
    if any(running(pod, ENGINE_CONTAINER) for pod in pods):
        return Finding("Ready", False, "Loading", "the engine loads the model")
    if any(running(pod, MODEL_CONTAINER) for pod in pods):
        return Finding("Ready", False, "FetchingModel", "the model is being fetched")
    return Finding("Ready", False, "Starting", "pods are being started")


def progressing(counts: Counts, wanted: int, observed: Observed) -> Finding:
    generation = observed.workload.get("metadata", {}).get("generation", 0)
    counted = bool(observed.workload) and counts.observed_generation >= generation
    if observed.refusal:
        return Finding("Progressing", False, *observed.refusal)
    if counted and counts.replicas == counts.updated_replicas == counts.ready_replicas == wanted:
        return Finding("Progressing", False, "Complete", f"{wanted} of {wanted} replicas are ready")
    if counted and (stuck := blocked(observed.workload)):
        return Finding("Progressing", False, *stuck)
    message = f"{counts.updated_replicas} of {wanted} replicas are up to date, {counts.ready_replicas} ready"
    return Finding("Progressing", True, "RollingOut", message)


def degraded(faults: list[Problem]) -> Finding:
    if not faults:
        return Finding("Degraded", False, "AsExpected", "nothing is wrong")
    return Finding("Degraded", True, faults[0].reason, "; ".join(problem.message for problem in faults[:3]))


def name_taken(observed: Observed) -> Iterator[Finding]:
    if observed.name_holders:
        held = ", ".join(f"{name} is held by {holder}" for name, holder in observed.name_holders)
        reach = f"requests reach this one as {observed.address}"
        yield Finding("NameTaken", True, "HeldByAnOlderOne", f"{held}; {reach}")


def dated(finding: Finding, generation: int, observed: Observed) -> Condition:
    """Keeps the time of the last transition for as long as the status stays."""
    now = {
        "type": finding.type,
        "status": str(finding.holds),
        "reason": finding.reason,
        "message": finding.message,
        "lastTransitionTime": observed.now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "observedGeneration": generation,
    }
    for last in observed.conditions:
        if (last["type"], last["status"]) == (now["type"], now["status"]):
            now["lastTransitionTime"] = last["lastTransitionTime"]
    return msgspec.convert(now, Condition)
