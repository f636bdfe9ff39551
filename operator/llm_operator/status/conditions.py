"""The conditions of an LLMDeployment: each a verdict over replicas, pods and problems."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from engine_server.contract.labels import ENGINE_CONTAINER, MODEL_CONTAINER
from llm_operator.observed import Manifest, Observed, Problem
from llm_operator.status.problems import condition, is_running, phase, problems

# A Degraded message has at most so many problems.
MOST_PROBLEMS = 3


class Verdict(NamedTuple):
    """The state of a condition, without its time."""

    holds: bool
    reason: str
    message: str


class Counts(msgspec.Struct, frozen=True, rename="camel"):
    """Replicas as the Deployment's status counts them."""

    replicas: int = 0
    updated_replicas: int = 0
    ready_replicas: int = 0
    # The generation of the Deployment that was counted; -1 before the first count.
    observed_generation: int = -1


@dataclass(frozen=True, slots=True)
class Evidence:
    """The facts that the verdicts depend on."""

    wanted: int
    counts: Counts
    workload: Manifest
    pods: Sequence[Manifest]
    # The problems that are known, the most important first.
    problems: Sequence[Problem]
    refusal: Problem | None

    @classmethod
    def of(cls, wanted: int, workload: Manifest, observed: Observed) -> "Evidence":
        counts = msgspec.convert(workload.get("status", {}), Counts)
        # Failed pods, such as evicted ones, stay around after others have replaced them.
        are_replaced = counts.ready_replicas >= wanted
        pods = [pod for pod in observed.pods if not (are_replaced and phase(pod) == "Failed")]
        found = (observed.refusal, *problems(pods), blockage(workload))
        known = [problem for problem in found if problem]
        return cls(wanted, counts, workload, pods, known, observed.refusal)

    @property
    def is_counted(self) -> bool:
        """True if the counts refer to the current generation of the Deployment."""
        generation: int = self.workload.get("metadata", {}).get("generation", 0)
        return self.counts.observed_generation >= generation


def blockage(workload: Manifest) -> Problem | None:
    """Return the reason why the Deployment cannot create pods, or has given up waiting for them."""
    failure = condition(workload, "ReplicaFailure")
    if failure.get("status") == "True":
        return Problem(failure.get("reason", "ReplicaFailure"), failure.get("message", ""))
    if condition(workload, "Progressing").get("reason") == "ProgressDeadlineExceeded":
        return Problem("ProgressDeadlineExceeded", "the replicas were not ready within the deadline")
    return None


def ready(evidence: Evidence) -> Verdict:
    """True means that a request to the router is answered."""
    wanted, answering = evidence.wanted, evidence.counts.ready_replicas
    if wanted and answering:
        return Verdict(True, "ReplicasReady", f"{answering} of {wanted} replicas answer")
    if evidence.problems:
        return Verdict(False, *evidence.problems[0])
    if not wanted:
        return Verdict(False, "ScaledToZero", "no replica is wanted")
    if any(is_running(pod, ENGINE_CONTAINER) for pod in evidence.pods):
        return Verdict(False, "Loading", "the engine loads the model")
    if any(is_running(pod, MODEL_CONTAINER) for pod in evidence.pods):
        return Verdict(False, "FetchingModel", "the model is being fetched")
    return Verdict(False, "Starting", "pods are being started")


def progressing(evidence: Evidence) -> Verdict:
    """True means that replicas are being started, replaced or ended."""
    wanted, counts = evidence.wanted, evidence.counts
    if evidence.refusal:
        return Verdict(False, *evidence.refusal)
    are_current = counts.replicas == counts.updated_replicas == counts.ready_replicas == wanted
    if evidence.is_counted and are_current:
        return Verdict(False, "Complete", f"{wanted} of {wanted} replicas are ready")
    if evidence.is_counted and (reason := blockage(evidence.workload)):
        return Verdict(False, *reason)
    message = f"{counts.updated_replicas} of {wanted} replicas are up to date, {counts.ready_replicas} ready"
    return Verdict(True, "RollingOut", message)


def degraded(evidence: Evidence) -> Verdict:
    """True means that something failed, even if other replicas answer."""
    if not evidence.problems:
        return Verdict(False, "AsExpected", "nothing is wrong")
    first = evidence.problems[:MOST_PROBLEMS]
    return Verdict(True, first[0].reason, "; ".join(problem.message for problem in first))


def name_taken(observed: Observed) -> Verdict | None:
    """True means that served names reach another deployment; None leaves the condition out."""
    if not observed.name_holders:
        return None
    held = ", ".join(f"{name} is held by {holder}" for name, holder in observed.name_holders)
    return Verdict(True, "HeldByAnOlderOne", f"{held}; requests reach this one as {observed.key}")
