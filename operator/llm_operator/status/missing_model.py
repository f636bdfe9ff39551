"""Models that engines did not find, and what a download makes of that."""

from collections.abc import Sequence

from engine_server.contract.cluster.labels import CACHED_AT_ANNOTATION
from engine_server.contract.cluster.reasons import Reason
from llm_operator.observed import Manifest, Observed, Problem, annotation, found_no_model


def without_repaired(pods: Sequence[Manifest], workload: Manifest, observed: Observed) -> list[Manifest]:
    """Return the pods but for those whose engine found no model before the end of a download."""
    return [pod for pod in pods if not found_no_model(pod) or is_lasting(pod, workload, observed)]


def is_lasting(pod: Manifest, workload: Manifest, observed: Observed) -> bool:
    """Return True for an engine without a model that no download brings or has brought since its start."""
    return observed.fetch is None and found_no_model(pod, since=annotation(workload, CACHED_AT_ANNOTATION))


def with_download(problem: Problem, workload: Manifest) -> Problem:
    """Return the problem of an engine that finds no model, with the fact that it was downloaded to its claim."""
    if problem.reason != Reason.MODEL_MISSING or not annotation(workload, CACHED_AT_ANNOTATION):
        return problem
    fact = "the model was downloaded to the claim before the engine started, which does not see it"
    return Problem(problem.reason, f"{fact}: {problem.message}")
