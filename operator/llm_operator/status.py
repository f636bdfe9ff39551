"""What an LLMDeployment reports about itself. No I/O."""

from collections.abc import Iterator
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from llm_operator.names import ENGINE_CONTAINER, MODEL_CONTAINER, selector
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


class Counts(NamedTuple):
    """Replicas as the Deployment counts them."""

    wanted: int
    existing: int = 0
    updated: int = 0
    ready: int = 0
    current: bool = False  # whether the counts are about what was applied last
    blocked: Problem | None = None  # why it cannot make pods, or why it gave up waiting for them

    @property
    def complete(self) -> bool:
        return self.current and self.existing == self.updated == self.ready == self.wanted

    @classmethod
    def of(cls, wanted: int, workload: Manifest | None) -> "Counts":
        if workload is None:
            return cls(wanted)
        said = workload.get("status", {})
        return cls(
            wanted=wanted,
            existing=said.get("replicas", 0),
            updated=said.get("updatedReplicas", 0),
            ready=said.get("readyReplicas", 0),
            current=said.get("observedGeneration", 0) >= workload["metadata"].get("generation", 0),
            blocked=blocked(workload),
        )


def blocked(workload: Manifest) -> Problem | None:
    failure = condition(workload, "ReplicaFailure")
    if failure.get("status") == "True":
        return Problem(failure.get("reason", "ReplicaFailure"), failure.get("message", ""))
    progress = condition(workload, "Progressing")
    if progress.get("status") == "False" and progress.get("reason") == "ProgressDeadlineExceeded":
        return Problem("ProgressDeadlineExceeded", "the replicas were not ready within the deadline")
    return None


def status(name: str, generation: int, wanted: int, observed: Observed) -> Status:
    counts = Counts.of(wanted, observed.workload)
    faults = [
        problem for problem in (observed.refusal, *pod_problems(counts, observed), counts.blocked) if problem
    ]
    findings = [ready(counts, faults, observed), progressing(counts, observed.refusal), degraded(faults)]
    findings += name_taken(observed)
    return Status(
        observed_generation=generation,
        replicas=counts.existing,
        ready_replicas=counts.ready,
        selector=",".join(f"{key}={value}" for key, value in selector(name).items()),
        conditions=tuple(dated(finding, generation, observed) for finding in findings),
    )


def pod_problems(counts: Counts, observed: Observed) -> list[Problem]:
    """Pods that failed for good, as evicted ones do, count only until others have replaced them."""
    replaced = counts.ready >= counts.wanted
    return problems(
        pod for pod in observed.pods if not (replaced and pod.get("status", {}).get("phase") == "Failed")
    )


def ready(counts: Counts, faults: list[Problem], observed: Observed) -> Finding:
    """True means that a request to the router is answered."""
    if counts.wanted and counts.ready:
        return Finding("Ready", True, "ReplicasReady", f"{counts.ready} of {counts.wanted} replicas answer")
    if faults:
        return Finding("Ready", False, *faults[0])
    if not counts.wanted:
        return Finding("Ready", False, "ScaledToZero", "no replica is wanted")
    if any(running(pod, ENGINE_CONTAINER) for pod in observed.pods):
        return Finding("Ready", False, "Loading", "the engine loads the model")
    if any(running(pod, MODEL_CONTAINER) for pod in observed.pods):
        return Finding("Ready", False, "FetchingModel", "the model is being fetched")
    return Finding("Ready", False, "Starting", "pods are being started")


def progressing(counts: Counts, refusal: Problem | None) -> Finding:
    if refusal:
        return Finding("Progressing", False, *refusal)
    if counts.complete:
        return Finding(
            "Progressing", False, "Complete", f"{counts.wanted} of {counts.wanted} replicas are ready"
        )
    if counts.blocked and counts.current:
        return Finding("Progressing", False, *counts.blocked)
    message = f"{counts.updated} of {counts.wanted} replicas are up to date, {counts.ready} ready"
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
    holds: Literal["True", "False"] = "True" if finding.holds else "False"
    last = next((entry for entry in observed.conditions if entry["type"] == finding.type), None)
    if last is not None and last["status"] == holds:
        since = last["lastTransitionTime"]
    else:
        since = observed.now.strftime("%Y-%m-%dT%H:%M:%SZ")
    return Condition(
        type=finding.type,
        status=holds,
        reason=finding.reason,
        message=finding.message,
        last_transition_time=since,
        observed_generation=generation,
    )
