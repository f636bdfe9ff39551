"""The condition ModelCached: the state of the download into a model's cache."""

from collections.abc import Mapping
from typing import Any

from engine_server.contract.cluster.downloads import downloaded
from engine_server.contract.cluster.labels import UNUSABLE_MODEL_ANNOTATION
from engine_server.contract.cluster.reasons import Reason, needs_person
from llm_operator.api.model_cache import ModelCache, model_cache
from llm_operator.api.spec import LLMDeploymentSpec
from llm_operator.observed import (
    Fetch,
    Observed,
    Problem,
    Warned,
    annotation,
    claim_key,
    fetch_key,
    workload_key,
)
from llm_operator.status.creation import creation_problem
from llm_operator.status.problems import phase, problems, unusable_problem
from llm_operator.status.verdicts import Verdict
from llm_operator.status.volumes import with_place

# Reasons of Events of a claim that gets no volume.
NO_VOLUME = ("ProvisioningFailed", "FailedBinding")
# For a volume that the replicas in force have on another node than the download.
TOGETHER = "keep downloads and replicas on one node by podTemplate.spec.nodeSelector, or use ReadWriteMany"


def model_cached(spec: LLMDeploymentSpec | None, observed: Observed) -> Verdict | None:
    """True means that the model is on its volume; None leaves the condition out."""
    cache = model_cache(spec.model) if spec else None
    if cache is None:
        return None
    if problem := cache_problem(spec, observed):
        return Verdict(False, *problem)
    if observed.cached_model(workload_key(observed.key.name)) == cache.mark(observed.claim_uid(cache.claim)):
        return Verdict(
            True, Reason.CACHED, f"the model is in the folder {cache.name} of the claim {cache.claim}"
        )
    return Verdict(False, Reason.FETCHING_MODEL, progress(observed.fetch or Fetch()))


def cache_problem(spec: LLMDeploymentSpec | None, observed: Observed) -> Problem | None:
    """Return the reason why the download, or the use of the volume, does not succeed."""
    cache = model_cache(spec.model) if spec else None
    if cache is None:
        return None
    if observed.fetch is None:
        return node_problem(cache, observed)
    if line := annotation(observed.children.get(fetch_key(cache.name), {}), UNUSABLE_MODEL_ANNOTATION):
        return unusable_problem(line)
    claim = observed.children.get(claim_key(cache.claim), {})
    if "deletionTimestamp" in claim.get("metadata", {}):
        return Problem(
            Reason.CLAIM_TERMINATING,
            f"the claim {cache.claim} is being deleted; it is created again afterwards",
        )
    pods = observed.fetch.pods
    pod_spec = pods[-1]["spec"] if pods else {}
    for warned in reversed(observed.fetch.warnings):
        if problem := warning_problem(cache, warned, pod_spec):
            return problem
    found = [with_place(each, pod_spec, observed) for each in problems(pods, pod_spec)]
    return full_volume(cache, found[0]) if found else None


def warning_problem(cache: ModelCache, warned: Warned, pod_spec: Mapping[str, Any]) -> Problem | None:
    """Return the problem that a Warning tells. What may pass is left out, but for a volume that is in use."""
    reason, message = warned
    if reason in NO_VOLUME:
        if "storageclass" in message.lower() or "no storage class is set" in message:
            return Problem(
                Reason.STORAGE_CLASS_NOT_FOUND, f"the claim {cache.claim} gets no volume: {message}"
            )
        if "access mode" in message.lower() or "MULTI_NODE" in message:
            return Problem(
                Reason.WRONG_ACCESS_MODE,
                f"the claim {cache.claim} gets no volume with the access mode {cache.access_mode}: {message}",
            )
        return Problem(Reason.CLAIM_PENDING, f"the claim {cache.claim} gets no volume: {message}")
    problem = creation_problem(warned, pod_spec)
    if problem is not None and problem.reason == Reason.VOLUME_IN_USE:
        return Problem(problem.reason, f"{problem.message}; {TOGETHER}")
    return problem if problem is not None and needs_person(problem.reason) else None


def full_volume(cache: ModelCache, problem: Problem) -> Problem:
    """Return the problem in terms of the volume if that has no room."""
    if "No space left on device" not in problem.message:
        return problem
    remedy = "raise model.cache.size" if cache.is_created else "enlarge the claim"
    return Problem(Reason.VOLUME_FULL, f"the volume of the claim {cache.claim} is full: {remedy}")


def node_problem(cache: ModelCache, observed: Observed) -> Problem | None:
    """Return the problem of replicas on several nodes with a volume that is for one."""
    pods = [pod for pod in observed.pods if pod.get("spec", {}).get("nodeName")]
    nodes = sorted({pod["spec"]["nodeName"] for pod in pods})
    is_pending = any(pod.get("status", {}).get("phase") == "Pending" for pod in pods)
    if cache.access_mode != "ReadWriteOnce" or len(nodes) < 2 or not is_pending:
        return None
    return Problem(
        Reason.WRONG_ACCESS_MODE,
        f"the claim {cache.claim} is ReadWriteOnce, for the pods of one node, and replicas are on {', '.join(nodes)};"
        " set model.cache.accessMode to ReadWriteMany",
    )


def progress(fetch: Fetch) -> str:
    if fetch.total or fetch.done:
        return downloaded(fetch.done, fetch.total)
    has_ended = any(phase(pod) == "Succeeded" for pod in fetch.pods)
    return "the download has ended" if has_ended else "the download starts"
