"""The assessment: the status that an LLMDeployment reports, from its spec and the cluster's state. No I/O."""

from engine_server.contract.labels import selector_text
from llm_operator.api.spec import LLMDeploymentSpec
from llm_operator.api.status import Condition, ConditionStatus, ConditionType, Status
from llm_operator.observed import Observed
from llm_operator.status.conditions import Evidence, Verdict, degraded, name_taken, progressing, ready


def assess(spec: LLMDeploymentSpec | None, observed: Observed) -> Status:
    """Return the status. Without a valid spec it refers to what runs: the replicas of the Deployment in force."""
    workload = observed.workload(observed.key.name)
    wanted = workload.get("spec", {}).get("replicas", 0) if spec is None else spec.replicas
    evidence = Evidence.of(wanted, workload, observed)
    verdicts: dict[ConditionType, Verdict] = {
        "Ready": ready(evidence),
        "Progressing": progressing(evidence),
        "Degraded": degraded(evidence),
    }
    if taken := name_taken(observed):
        verdicts["NameTaken"] = taken
    return Status(
        observed_generation=observed.generation,
        replicas=evidence.counts.replicas,
        ready_replicas=evidence.counts.ready_replicas,
        selector=selector_text(observed.key.name),
        conditions=tuple(dated(kind, verdict, observed) for kind, verdict in verdicts.items()),
    )


def dated(kind: ConditionType, verdict: Verdict, observed: Observed) -> Condition:
    """Return a condition, with the time of the last transition if the status is still the reported one."""
    status: ConditionStatus = "True" if verdict.holds else "False"
    since = observed.now.strftime("%Y-%m-%dT%H:%M:%SZ")
    for last in observed.reported.get("conditions", ()):
        if (last["type"], last["status"]) == (kind, status):
            since = last["lastTransitionTime"]
    return Condition(
        type=kind,
        status=status,
        reason=verdict.reason,
        message=verdict.message,
        last_transition_time=since,
        observed_generation=observed.generation,
    )
