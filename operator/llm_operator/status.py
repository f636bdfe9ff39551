"""What an LLMDeployment reports about itself. No I/O."""

from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta

from engine_server.contract.labels import ENGINE_CONTAINER, MODEL_CONTAINER, selector_text
from llm_operator.observed import Manifest, Observed
from llm_operator.reasons import Problem, condition, phase, problems, running
from llm_operator.schema import Count, Section, about

BY_TYPE = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}


class Condition(Section, frozen=True, omit_defaults=False):
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


class Status(Section, frozen=True, omit_defaults=False):
    observed_generation: Annotated[int, about("The generation that this speaks of.")] = 0
    replicas: Annotated[Count, about("Replicas that there are.")] = 0
    ready_replicas: Annotated[Count, about("Replicas that answer.")] = 0
    selector: Annotated[str, about("Finds the pods; for whoever scales.")] = ""
    conditions: Annotated[
        tuple[Condition, ...], Meta(extra_json_schema=BY_TYPE), about("What is so, and why.")
    ] = ()

    def as_manifest(self) -> Manifest:
        return msgspec.json.decode(msgspec.json.encode(self), type=dict[str, Any])


class Verdict(NamedTuple):
    holds: bool
    reason: str
    message: str


class Counts(msgspec.Struct, frozen=True, rename="camel"):
    """Replicas as the Deployment's status counts them."""

    replicas: int = 0
    updated_replicas: int = 0
    ready_replicas: int = 0
    observed_generation: int = -1  # nothing was counted yet


def status(name: str, generation: int, wanted: int, observed: Observed) -> Status:
    counts = msgspec.convert(observed.workload.get("status", {}), Counts)
    # Pods that failed for good, as evicted ones do, count only until others have replaced them.
    replaced = counts.ready_replicas >= wanted
    pods = [pod for pod in observed.pods if not (replaced and phase(pod) == "Failed")]
    found = (observed.refusal, *problems(pods), blocked(observed.workload))
    faults = [problem for problem in found if problem]
    verdicts = {
        "Ready": ready(counts, wanted, faults, pods),
        "Progressing": progressing(counts, wanted, observed),
        "Degraded": degraded(faults),
        "NameTaken": name_taken(observed),
    }
    return Status(
        observed_generation=generation,
        replicas=counts.replicas,
        ready_replicas=counts.ready_replicas,
        selector=selector_text(name),
        conditions=tuple(dated(kind, each, generation, observed) for kind, each in verdicts.items() if each),
    )


def blocked(workload: Manifest) -> Problem | None:
    """Why the Deployment cannot make pods, or why it gave up waiting for them."""
    failure = condition(workload, "ReplicaFailure")
    if failure.get("status") == "True":
        return Problem(failure.get("reason", "ReplicaFailure"), failure.get("message", ""))
    if condition(workload, "Progressing").get("reason") == "ProgressDeadlineExceeded":
        return Problem("ProgressDeadlineExceeded", "the replicas were not ready within the deadline")
    return None


def ready(counts: Counts, wanted: int, faults: list[Problem], pods: list[Manifest]) -> Verdict:
    """True means that a request to the router is answered."""
    if wanted and counts.ready_replicas:
        return Verdict(True, "ReplicasReady", f"{counts.ready_replicas} of {wanted} replicas answer")
    if faults:
        return Verdict(False, *faults[0])
    if not wanted:
        return Verdict(False, "ScaledToZero", "no replica is wanted")
    if any(running(pod, ENGINE_CONTAINER) for pod in pods):
        return Verdict(False, "Loading", "the engine loads the model")
    if any(running(pod, MODEL_CONTAINER) for pod in pods):
        return Verdict(False, "FetchingModel", "the model is being fetched")
    return Verdict(False, "Starting", "pods are being started")


def progressing(counts: Counts, wanted: int, observed: Observed) -> Verdict:
    generation = observed.workload.get("metadata", {}).get("generation", 0)
    counted = counts.observed_generation >= generation
    if observed.refusal:
        return Verdict(False, *observed.refusal)
    if counted and counts.replicas == counts.updated_replicas == counts.ready_replicas == wanted:
        return Verdict(False, "Complete", f"{wanted} of {wanted} replicas are ready")
    if counted and (stuck := blocked(observed.workload)):
        return Verdict(False, *stuck)
    message = f"{counts.updated_replicas} of {wanted} replicas are up to date, {counts.ready_replicas} ready"
    return Verdict(True, "RollingOut", message)


def degraded(faults: list[Problem]) -> Verdict:
    if not faults:
        return Verdict(False, "AsExpected", "nothing is wrong")
    return Verdict(True, faults[0].reason, "; ".join(problem.message for problem in faults[:3]))


def name_taken(observed: Observed) -> Verdict | None:
    if not observed.name_holders:
        return None
    held = ", ".join(f"{name} is held by {holder}" for name, holder in observed.name_holders)
    return Verdict(True, "HeldByAnOlderOne", f"{held}; requests reach this one as {observed.address}")


def dated(kind: str, verdict: Verdict, generation: int, observed: Observed) -> Condition:
    """Keeps the time of the last transition for as long as the status stays."""
    status: Literal["True", "False"] = "True" if verdict.holds else "False"
    since = observed.now.strftime("%Y-%m-%dT%H:%M:%SZ")
    for last in observed.conditions:
        if (last["type"], last["status"]) == (kind, status):
            since = last["lastTransitionTime"]
    return Condition(
        type=kind,
        status=status,
        reason=verdict.reason,
        message=verdict.message,
        last_transition_time=since,
        observed_generation=generation,
    )
