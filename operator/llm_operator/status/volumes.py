"""Volumes that keep pods from nodes: where they are, as far as their claims tell, and what to do."""

from collections.abc import Mapping
from typing import Any

from llm_operator.observed import SELECTED_NODE_ANNOTATION, Observed, Problem, annotation, claim_key
from llm_operator.status.problems import condition
from llm_operator.status.scheduling import AFFINITY, FOR_OTHER_NODES, claims_of

# Of one LLMDeployment.
MOST_CLAIMS = 2


def claims_in_question(observed: Observed) -> set[str]:
    """Return the claims whose volumes keep pods from nodes, but for those that are watched."""
    if not any(AFFINITY.search(condition(pod, "PodScheduled").get("message", "")) for pod in observed.pods):
        return set()
    template = observed.workload(observed.key.name).get("spec", {}).get("template", {}).get("spec", {})
    return {name for name in claims_of(template)[:MOST_CLAIMS] if claim_key(name) not in observed.children}


def with_place(problem: Problem, pod_spec: Mapping[str, Any], observed: Observed) -> Problem:
    """Return the problem of a pod whose volume is for other nodes, with the node for which it was created."""
    if FOR_OTHER_NODES not in problem.message:
        return problem
    nodes = {name: annotation(observed.claim(name), SELECTED_NODE_ANNOTATION) for name in claims_of(pod_spec)}
    places = [f"the claim {name} has its volume on {node}" for name, node in nodes.items() if node]
    return Problem(problem.reason, "; ".join((problem.message, *places)))


def with_other_place(problem: Problem, pod_spec: Mapping[str, Any], observed: Observed) -> Problem:
    """Return the problem of a pod whose volume is for other nodes, with the remedy where no other replica uses it."""
    if FOR_OTHER_NODES not in problem.message:
        return problem
    ours = [name for name in claims_of(pod_spec) if claim_key(name) in observed.children]
    remedy = (
        f"delete the claim {', '.join(ours)}, which is then created and filled where a replica can run"
        if ours
        else "make room for the pod on the volume's node, or use a claim whose volume can be mounted on other nodes"
    )
    return Problem(problem.reason, f"{problem.message}; {remedy}")
