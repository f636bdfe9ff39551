"""Verdicts over replicas, pods and problems."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import msgspec

from engine_server.contract.cluster.failed_start import pause_seconds
from engine_server.contract.cluster.labels import ENGINE_CONTAINER, PAUSED_ANNOTATION
from engine_server.contract.cluster.reasons import Reason, needs_person
from llm_operator.api.spec import LLMDeploymentSpec
from llm_operator.api.status import FailedStart
from llm_operator.observed import Manifest, Observed, Problem, StartReport
from llm_operator.status.creation import creation_problems
from llm_operator.status.missing_model import with_download, without_repaired
from llm_operator.status.problems import condition, is_fetching, is_running, phase, problems
from llm_operator.status.rollout import failing_pods, is_rolled_out, is_surge, with_surge_remedy
from llm_operator.status.start import current_report
from llm_operator.status.volumes import with_other_place, with_place

# A Degraded message has at most so many problems.
MOST_PROBLEMS = 3
PAUSED = f"changes are not carried out while the annotation {PAUSED_ANNOTATION} is set"
# With a place for how long it takes.
FETCHED_IN_PODS = (
    "the model is being fetched in each pod{}; model.cache fetches it once, before pods start, and is not bound by "
    "rollout.progressDeadlineSeconds"
)


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

    # None if it is invalid.
    spec: LLMDeploymentSpec | None
    observed: Observed
    wanted: int
    # Requests may start the first replica.
    is_autoscaled: bool
    counts: Counts
    workload: Manifest
    pods: Sequence[Manifest]
    # The problems that are known, the most important first.
    problems: Sequence[Problem]
    refusal: Problem | None
    # The reasons why replicas of the newest revision fail again and again.
    failures: Sequence[Problem]
    is_paused: bool
    start_report: StartReport | None
    # The Deployment's template has reached all replicas.
    is_rolled_out: bool
    # The last start, if it was given up.
    failed_start: FailedStart | None = None
    # More than the minimum is wanted, and no replica is ready.
    is_waking: bool = False
    # With a model cache: the model is on its volume.
    cached: Verdict | None = None
    # The download that the template of the present spec waits for, if any.
    download: Verdict | None = None

    @property
    def is_fetching_in_pods(self) -> bool:
        return is_fetching(self.pods)

    @classmethod
    def of(cls, spec: LLMDeploymentSpec | None, observed: Observed) -> "Evidence":
        workload = observed.workload(observed.key.name)
        wanted = workload.get("spec", {}).get("replicas", 0) if spec is None else spec.replicas
        counts = msgspec.convert(workload.get("status", {}), Counts)
        # Failed pods, such as evicted ones, stay around after others have replaced them.
        are_replaced = counts.ready_replicas >= wanted
        pods = [pod for pod in observed.pods if not (are_replaced and phase(pod) == "Failed")]
        pod_spec = workload.get("spec", {}).get("template", {}).get("spec", {})
        judged = without_repaired(pods, workload, observed)
        uncreated = creation_problems(replace(observed, pods=tuple(pods)), pod_spec)
        of_pods = [with_place(each, pod_spec, observed) for each in (*problems(judged, pod_spec), *uncreated)]
        if is_surge(workload, wanted):
            of_pods = [with_surge_remedy(each, workload) for each in of_pods]
        else:
            of_pods = [with_other_place(each, pod_spec, observed) for each in of_pods]
        of_pods = [with_download(each, workload) for each in of_pods]
        lasting = observed.refusal if is_lasting(observed.refusal) else None
        found = (lasting, *of_pods, blockage(workload, pods))
        known = [problem for problem in found if problem]
        failures = problems(failing_pods(judged, observed.replica_sets), pod_spec)
        return cls(
            spec=spec,
            observed=observed,
            wanted=wanted,
            is_autoscaled=spec is not None and spec.autoscaling is not None,
            counts=counts,
            workload=workload,
            pods=pods,
            problems=known,
            refusal=observed.refusal,
            failures=failures,
            is_paused=observed.is_paused,
            start_report=current_report(observed),
            is_rolled_out=bool(workload) and is_rolled_out(workload, observed.replica_sets),
        )

    @property
    def is_counted(self) -> bool:
        """True if the counts refer to the current generation of the Deployment."""
        generation: int = self.workload.get("metadata", {}).get("generation", 0)
        return self.counts.observed_generation >= generation

    @property
    def is_complete(self) -> bool:
        """True if all wanted replicas are ready and have the Deployment's template, and there are no others."""
        counts = self.counts
        are_current = counts.replicas == counts.updated_replicas == counts.ready_replicas == self.wanted
        return self.is_counted and are_current


def is_lasting(refusal: Problem | None) -> bool:
    """Return True for a refusal that does not pass by itself."""
    return refusal is not None and needs_person(refusal.reason)


def blockage(workload: Manifest, pods: Sequence[Manifest]) -> Problem | None:
    """Return the reason why the Deployment cannot create pods, does not, or has given up waiting for them."""
    failure = condition(workload, "ReplicaFailure")
    if failure.get("status") == "True":
        return creation_problem(failure.get("reason", "ReplicaFailure"), failure.get("message", ""))
    if problem := pause_problem(workload):
        return problem
    late = deadline_problem(workload)
    if late is not None and is_fetching(pods):
        return late._replace(
            message=FETCHED_IN_PODS.format(", longer than rollout.progressDeadlineSeconds by now")
        )
    return late


def pause_problem(workload: Manifest) -> Problem | None:
    """Return the problem of a Deployment that was paused by hand, while replicas have another template than it."""
    counts = msgspec.convert(workload.get("status", {}), Counts)
    is_paused = workload.get("spec", {}).get("paused", False)
    if not is_paused or counts.replicas <= counts.updated_replicas:
        return None
    name = workload["metadata"]["name"]
    return Problem(
        Reason.DEPLOYMENT_PAUSED,
        f"{counts.updated_replicas} of {counts.replicas} replicas are up to date, and the Deployment {name} is paused: "
        f"kubectl rollout resume deployment/{name}",
    )


def deadline_problem(workload: Manifest) -> Problem | None:
    """Return the problem of a rollout that is past its deadline. The Deployment keeps it until one is complete."""
    if condition(workload, "Progressing").get("reason") == Reason.PROGRESS_DEADLINE_EXCEEDED:
        return Problem(Reason.PROGRESS_DEADLINE_EXCEEDED, "the replicas were not ready within the deadline")
    return None


def creation_problem(reason: str, message: str) -> Problem:
    """Return the reason why pods cannot be created. The name of the refused pod, a new one each time, is left out."""
    _, is_quota, detail = message.partition("exceeded quota: ")
    if is_quota:
        return Problem(
            Reason.QUOTA_EXCEEDED, f"no further pod can be created: it would exceed the quota {detail}"
        )
    return Problem(reason, message)


def ready(evidence: Evidence) -> Verdict:
    """True means that a request to the router is answered."""
    cached, has_other_cause = evidence.cached, evidence.workload or evidence.problems or evidence.refusal
    if cached is not None and not cached.holds and not has_other_cause:
        return cached
    wanted, answering = evidence.wanted, evidence.counts.ready_replicas
    if wanted and answering:
        return Verdict(True, Reason.REPLICAS_READY, f"{answering} of {wanted} replicas answer")
    # Requests do not wait for what only a person can change.
    may_start = not any(needs_person(problem.reason) for problem in evidence.problems)
    if evidence.failed_start and may_start:
        return Verdict(False, Reason.START_FAILED, failure_message(evidence.failed_start, wanted))
    if evidence.is_waking and evidence.is_rolled_out and may_start:
        return Verdict(True, Reason.WAKING, starting(evidence).message)
    if evidence.problems:
        return Verdict(False, *evidence.problems[0])
    if not wanted and evidence.is_autoscaled:
        return Verdict(True, Reason.SCALED_TO_ZERO, "the next request starts a replica")
    if not wanted:
        return Verdict(False, Reason.STOPPED, "spec.replicas is 0, and there is no spec.autoscaling")
    return starting(evidence)


def failure_message(failure: FailedStart, wanted: int) -> str:
    minutes = pause_seconds(failure.count) / 60
    effect = "no more than the minimum is started" if wanted else "requests are refused"
    return (
        f"no replica was ready within rollout.progressDeadlineSeconds ({failure.reason}: {failure.message}); "
        f"{effect} for {minutes:.0f} minutes after {failure.time}"
    )


def cause_of_delay(evidence: Evidence) -> Problem:
    """Return the reason why no replica is ready."""
    if evidence.problems:
        return evidence.problems[0]
    phase = starting(evidence)
    return Problem(phase.reason, phase.message)


def starting(evidence: Evidence) -> Verdict:
    """Return the phase of a start."""
    if evidence.refusal:
        return Verdict(False, *evidence.refusal)
    if any(is_running(pod, ENGINE_CONTAINER) for pod in evidence.pods):
        return loading(evidence.start_report)
    if evidence.download:
        return evidence.download
    if evidence.is_fetching_in_pods:
        return Verdict(
            False,
            Reason.FETCHING_MODEL,
            FETCHED_IN_PODS.format(""),
        )
    return Verdict(False, Reason.STARTING, "pods are being started")


def loading(report: StartReport | None) -> Verdict:
    """Return the phase of an engine that starts."""
    match report.phase if report else "":
        case "load" if report:
            return Verdict(False, Reason.LOADING, f"the engine loads the model: {report.percent} %")
        case "warm up":
            return Verdict(False, Reason.WARMING_UP, "the model is loaded, and the engine warms up")
    return Verdict(False, Reason.LOADING, "the engine loads the model")


def progressing(evidence: Evidence) -> Verdict:
    """True means that replicas are being started, replaced or ended."""
    wanted, counts = evidence.wanted, evidence.counts
    if evidence.refusal:
        return Verdict(not is_lasting(evidence.refusal), *evidence.refusal)
    if evidence.is_paused:
        return Verdict(False, Reason.PAUSED, PAUSED)
    if evidence.download:
        return evidence.download._replace(holds=True)
    if evidence.is_complete:
        return Verdict(False, Reason.COMPLETE, f"{wanted} of {wanted} replicas are ready")
    if evidence.is_counted and (reason := blockage(evidence.workload, evidence.pods)):
        return Verdict(False, *reason)
    if evidence.is_counted and evidence.failures:
        return Verdict(False, *evidence.failures[0])
    message = f"{counts.updated_replicas} of {wanted} replicas are up to date, {counts.ready_replicas} ready"
    return Verdict(True, Reason.ROLLING_OUT, message)


def degraded(evidence: Evidence) -> Verdict:
    """True means that something failed, even if other replicas answer."""
    if not evidence.problems:
        return Verdict(False, Reason.AS_EXPECTED, "nothing is wrong")
    first = evidence.problems[:MOST_PROBLEMS]
    return Verdict(True, first[0].reason, "; ".join(problem.message for problem in first))


def reconciling(evidence: Evidence) -> Verdict | None:
    """True means that replicas lack the template of the present spec; None leaves the condition out.

    kstatus expects both. It is no state of the replicas' number or health: scaling and restarts do not set it.
    """
    is_carried_out = evidence.is_rolled_out or evidence.is_complete
    is_current = is_carried_out and not evidence.refusal and not evidence.download
    if is_current or evidence.is_paused or stalled(evidence):
        return None
    return progressing(evidence)._replace(holds=True)


def stalled(evidence: Evidence) -> Verdict | None:
    """True means that only a change by the user can help; None leaves the condition out, as kstatus expects.

    Before a rollout's deadline a failure of its replicas may pass.
    """
    if evidence.refusal:
        return Verdict(True, *evidence.refusal) if is_lasting(evidence.refusal) else None
    if evidence.download or evidence.is_paused or not evidence.is_counted or evidence.is_fetching_in_pods:
        return None
    return Verdict(True, *late) if (late := deadline_problem(evidence.workload)) else None


def name_taken(observed: Observed) -> Verdict | None:
    """True means that served names reach another deployment; None leaves the condition out."""
    if not observed.name_holders:
        return None
    held = ", ".join(f"{name} is held by {holder}" for name, holder in observed.name_holders)
    return Verdict(True, Reason.HELD_BY_AN_OLDER_ONE, f"{held}; requests reach this one as {observed.key}")
