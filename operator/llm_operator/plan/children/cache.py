"""The model cache: a claim, and a Job that downloads the model into it before a replica starts.

Both are shared by all LLMDeployments of a namespace that have the same cache. Each one is an owner, and applies with a
field manager of its own.
"""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any

from engine_server.contract.cluster import labels
from llm_operator.api.model_cache import ModelCache, model_cache
from llm_operator.api.quantity import amount
from llm_operator.api.spec import LLMDeployment
from llm_operator.observed import (
    SELECTED_NODE_ANNOTATION,
    ChildKey,
    Manifest,
    Observed,
    annotation,
    claim_key,
    fetch_key,
    workload_key,
)
from llm_operator.plan.children.fetch_job import devices, fetch_job
from llm_operator.plan.lost_model import is_lost
from llm_operator.plan.ownership import is_complete, is_followed, is_owned, is_terminating, shared_child
from llm_operator.plan.pod.pods import pod_template
from llm_operator.plan.pod.template_record import template_in_force
from llm_operator.plan.pod.volumes import filling_source
from llm_operator.settings import Settings

# The time between two looks at a download that runs; of one that does not, up to the longest.
POLL_SECONDS = 2.0
LONGEST_POLL_SECONDS = 60.0
# The annotations by which a Deployment records a complete model.
RECORD = (labels.CACHED_MODEL_ANNOTATION, labels.CACHED_AT_ANNOTATION, labels.REFETCHED_FOR_ANNOTATION)


def plan(deployment: LLMDeployment, observed: Observed, settings: Settings) -> Iterator[Manifest]:
    cache = model_cache(deployment.spec.model)
    yield from former_claims(deployment, cache, observed, settings)
    if cache is None:
        return
    if cache.is_created and not is_terminating(observed.children.get(claim_key(cache.claim))):
        yield claim(deployment, cache, observed, settings)
    if not is_cached(cache, deployment, observed):
        yield from job(deployment, cache, observed, settings)


def fetched_into(deployment: LLMDeployment, observed: Observed) -> ModelCache | None:
    """Return the cache whose download replicas of this spec must wait for, if any."""
    cache = model_cache(deployment.spec.model)
    return None if cache is None or is_cached(cache, deployment, observed) else cache


def is_cached(cache: ModelCache, deployment: LLMDeployment, observed: Observed) -> bool:
    """Return True once the Job has ended well.

    The Deployment and a created claim record it, since the Job is deleted then. The record on the claim is for other
    LLMDeployments, which need no Job of their own. It has the claim's UID: one that is created anew is filled again.
    A user's claim is filled again, once for each template, when an engine finds no model there.
    """
    job = observed.children.get(fetch_key(cache.name))
    if job is not None and is_complete(job):
        return True
    if not cache.is_created and is_lost(observed.workload(deployment.name), observed):
        return False
    places = (workload_key(deployment.name), claim_key(cache.claim))
    return mark(cache, observed) in map(observed.cached_model, places)


def poll_after(cache: ModelCache, observed: Observed) -> float:
    """Return the seconds until the next look at a download.

    While no pod of it runs, that is a tenth of its age: the Job's status, which is watched, tells when one does.
    """
    job = observed.children.get(fetch_key(cache.name), {})
    created = job.get("metadata", {}).get("creationTimestamp")
    if created is None or job.get("status", {}).get("ready"):
        return POLL_SECONDS
    age = (observed.now - datetime.fromisoformat(created)).total_seconds()
    return min(LONGEST_POLL_SECONDS, max(POLL_SECONDS, age / 10))


def annotations(deployment: LLMDeployment, observed: Observed) -> dict[str, str]:
    """Return the Deployment's record of a complete model; while another one is downloaded, the last record.

    Of a lost model that is downloaded again there is only the template that lost it: while no engine starts, nothing
    else shows the loss.
    """
    cache = model_cache(deployment.spec.model)
    if cache is None:
        return {}
    existing = observed.workload(deployment.name).get("metadata", {}).get("annotations", {})
    last = {name: existing[name] for name in RECORD if name in existing}
    if not is_cached(cache, deployment, observed):
        if last.get(labels.CACHED_MODEL_ANNOTATION) != mark(cache, observed):
            return last
        return {labels.REFETCHED_FOR_ANNOTATION: existing.get(labels.RECORD_HASH_ANNOTATION, "")}
    ended = observed.children.get(fetch_key(cache.name), {}).get("status", {}).get("completionTime")
    time = {labels.CACHED_AT_ANNOTATION: ended} if ended else {}
    return last | time | {labels.CACHED_MODEL_ANNOTATION: mark(cache, observed)}


def mark(cache: ModelCache, observed: Observed) -> str:
    return cache.mark(observed.claim_uid(cache.claim))


def claim(deployment: LLMDeployment, cache: ModelCache, observed: Observed, settings: Settings) -> Manifest:
    """Plan the claim. Its size only grows, since a volume cannot shrink and others may need more of it."""
    wanted = deployment.spec.model.cache
    assert wanted is not None and wanted.size is not None
    existing = observed.children.get(claim_key(cache.claim), {})
    size = existing.get("spec", {}).get("resources", {}).get("requests", {}).get("storage", wanted.size)
    spec = {
        "accessModes": [cache.access_mode],
        "resources": {"requests": {"storage": max(size, wanted.size, key=amount)}},
    }
    if wanted.class_:
        spec["storageClassName"] = wanted.class_
    planned = claim_child(deployment, claim_key(cache.claim), observed, settings, spec)
    if is_cached(cache, deployment, observed):
        planned["metadata"]["annotations"] = {labels.CACHED_MODEL_ANNOTATION: mark(cache, observed)}
    return planned


def claim_child(
    deployment: LLMDeployment, key: ChildKey, observed: Observed, settings: Settings, spec: dict[str, Any]
) -> Manifest:
    """Return a claim with the version that created it: two operators would write their own ones in turns."""
    existing = observed.children.get(key, {}).get("metadata", {}).get("labels", {})
    version = existing.get(labels.VERSION_LABEL, settings.version)
    return shared_child(deployment, key, replace(settings, version=version), spec=spec)


def former_claims(
    deployment: LLMDeployment, cache: ModelCache | None, observed: Observed, settings: Settings
) -> Iterator[Manifest]:
    """Plan the claims of earlier specs for as long as replicas use them."""
    for key, existing in observed.children.items():
        is_former = key.kind == "PersistentVolumeClaim" and (cache is None or key.name != cache.claim)
        if is_former and is_owned(existing, deployment) and is_used(key, deployment, observed):
            spec = {name: existing["spec"][name] for name in ("accessModes", "resources")}
            if "storageClassName" in existing["spec"]:
                spec["storageClassName"] = existing["spec"]["storageClassName"]
            planned = claim_child(deployment, key, observed, settings, spec)
            if record := observed.cached_model(key):
                planned["metadata"]["annotations"] = {labels.CACHED_MODEL_ANNOTATION: record}
            yield planned


def is_used(key: ChildKey, deployment: LLMDeployment, observed: Observed) -> bool:
    """Return True while the Deployment's template has the claim, or replicas of an earlier one may run."""
    workload = observed.workload(deployment.name)
    if not workload:
        return False
    volumes = workload["spec"]["template"]["spec"].get("volumes", ())
    if any(volume.get("persistentVolumeClaim", {}).get("claimName") == key.name for volume in volumes):
        return True
    status = workload.get("status", {})
    is_counted = status.get("observedGeneration", 0) >= workload["metadata"].get("generation", 0)
    return not (is_counted and status.get("replicas", 0) == status.get("updatedReplicas", 0))


def job(
    deployment: LLMDeployment, cache: ModelCache, observed: Observed, settings: Settings
) -> Iterator[Manifest]:
    """Plan the Job. A running one keeps its template, unless its own LLMDeployment asks for another now.

    In that case no Job is planned: the running one is deleted, and then created anew. So is one that waits for other
    GPUs than it should. An upgrade of the operator does not restart a running download. It tries a model again that
    the last version could not use.

    Raises SpecError before the download, unless the engines' template is there already: also for what only their pod
    has, and for what a podTemplate has for the container that fetches and the Job leaves out.
    """
    if template_in_force(deployment, observed) is None:
        pod_template(deployment, settings, filling_source(deployment.spec.model))
    key = fetch_key(cache.name)
    existing = observed.children.get(key)
    wanted = fetch_job(deployment, cache, settings, is_on_gpus=may_use_gpus(cache, observed))
    if existing is None:
        yield wanted
        return
    if is_terminating(existing):
        return
    metadata = existing["metadata"]
    own_spec = wanted["metadata"]["annotations"][labels.FETCH_SPEC_ANNOTATION]
    made_for = metadata["annotations"].get(labels.FETCH_SPEC_ANNOTATION)
    is_unusable = labels.UNUSABLE_MODEL_ANNOTATION in metadata["annotations"]
    is_outdated = is_unusable and metadata["labels"].get(labels.VERSION_LABEL) != settings.version
    is_misplaced = not is_unusable and waits_for_other_gpus(existing, wanted, cache, observed)
    if is_followed(existing, deployment) and (made_for != own_spec or is_outdated or is_misplaced):
        return
    kept = shared_child(deployment, key, settings, spec=existing["spec"])
    # What another one has applied is repeated as it is: a different value would be a conflict.
    kept["metadata"] |= {name: metadata[name] for name in ("labels", "annotations")}
    yield kept


def may_use_gpus(cache: ModelCache, observed: Observed) -> bool:
    """Return True while a claim has no volume and no replica has a node: the first pod decides where the volume is."""
    is_unread = not cache.is_created and cache.claim not in observed.claims
    is_bound = observed.claim(cache.claim).get("status", {}).get("phase") == "Bound"
    return not (is_unread or is_bound or has_node(observed))


def has_node(observed: Observed) -> bool:
    """Return True if a replica has a node, and may use its GPUs."""
    return any(
        pod.get("spec", {}).get("nodeName")
        and pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")
        for pod in observed.pods
    )


def waits_for_other_gpus(existing: Manifest, wanted: Manifest, cache: ModelCache, observed: Observed) -> bool:
    """Return True for a Job that asks for other GPUs than it should, and neither runs nor has a node to run on."""
    selected = annotation(observed.claim(cache.claim), SELECTED_NODE_ANNOTATION)
    is_placed = bool(selected) and not has_node(observed)
    is_waiting = existing.get("status", {}).get("ready") == 0
    return is_waiting and not is_placed and devices(existing) != devices(wanted)
