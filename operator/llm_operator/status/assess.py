"""The assessment: the status that an LLMDeployment reports, from its spec and the cluster's state. No I/O."""

from dataclasses import replace

from engine_server.contract.cluster.labels import ENGINE_CONTAINER, selector_text
from llm_operator.api.spec import LLMDeploymentSpec
from llm_operator.api.status import Condition, ConditionStatus, Status
from llm_operator.observed import Manifest, Observed, timestamp, workload_key
from llm_operator.status.adapters import served_adapters
from llm_operator.status.commits import mixed_revisions, served_commits
from llm_operator.status.conditions import CONDITIONS
from llm_operator.status.messages import presentable
from llm_operator.status.model_cache import cache_problem, model_cached
from llm_operator.status.problems import restarts
from llm_operator.status.start import last_start
from llm_operator.status.verdicts import Evidence, Verdict, cause_of_delay
from llm_operator.status.waking import failed_start, starting_since


def assess(spec: LLMDeploymentSpec | None, observed: Observed) -> Status:
    """Return the status. Without a valid spec it refers to what runs: the replicas of the Deployment in force."""
    observed = without_foreign(observed)
    evidence = Evidence.of(spec, observed)
    if problem := cache_problem(spec, observed):
        evidence = replace(evidence, problems=[*evidence.problems, problem])
    if problem := mixed_revisions(observed):
        evidence = replace(evidence, problems=[*evidence.problems, problem])
    cached = model_cached(spec, observed)
    evidence = replace(evidence, cached=cached, download=cached if observed.fetch is not None else None)
    ready_replicas = evidence.counts.ready_replicas
    since = starting_since(spec, ready_replicas, observed)
    failure = failed_start(spec, since, ready_replicas, cause_of_delay(evidence), observed)
    evidence = replace(evidence, failed_start=failure, is_waking=since is not None)
    return Status(
        observed_generation=observed.generation,
        operator=str(observed.reported.get("operator", "")),
        replicas=evidence.counts.replicas,
        ready_replicas=ready_replicas,
        image=image_in_force(evidence.workload),
        restarts=restarts(observed.pods),
        start=last_start(observed),
        starting_since=since,
        failed_start=failure,
        selector=selector_text(observed.key.name),
        commits=served_commits(observed),
        autoscaling=observed.scaling if evidence.is_autoscaled else None,
        adapters=served_adapters(spec, observed),
        conditions=tuple(
            dated(row.type, verdict, observed) for row in CONDITIONS if (verdict := row.verdict(evidence))
        ),
    )


def without_foreign(observed: Observed) -> Observed:
    """Return the state without a Deployment that another one controls, such as a deleted LLMDeployment of our name."""
    key, uid = workload_key(observed.key.name), observed.subject["metadata"].get("uid")
    owners = observed.children.get(key, {}).get("metadata", {}).get("ownerReferences", ())
    if all(owner["uid"] == uid for owner in owners if owner.get("controller")):
        return observed
    children = {name: child for name, child in observed.children.items() if name != key}
    return replace(observed, children=children, pods=(), replica_sets=())


def image_in_force(workload: Manifest) -> str:
    """Return the image of the engine's container; empty before the Deployment exists."""
    containers = workload.get("spec", {}).get("template", {}).get("spec", {}).get("containers", ())
    return next(
        (str(entry.get("image", "")) for entry in containers if entry["name"] == ENGINE_CONTAINER), ""
    )


def dated(kind: str, verdict: Verdict, observed: Observed) -> Condition:
    """Return a condition, with the time of the last transition if the status is still the reported one."""
    status: ConditionStatus = "True" if verdict.holds else "False"
    since = timestamp(observed.now)
    for last in observed.reported.get("conditions", ()):
        if (last["type"], last["status"]) == (kind, status):
            since = last["lastTransitionTime"]
    return Condition(
        type=kind,
        status=status,
        reason=verdict.reason,
        message=presentable(verdict.message),
        last_transition_time=since,
        observed_generation=observed.generation,
    )
