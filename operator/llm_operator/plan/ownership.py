"""The metadata that ties a child to its LLMDeployment, and the decisions that depend on it."""

from collections.abc import Iterable

from engine_server.contract.cluster import api, labels
from llm_operator.api.spec import LLMDeployment
from llm_operator.observed import ChildKey, Manifest, owners_of
from llm_operator.settings import Settings


def child(deployment: LLMDeployment, key: ChildKey, settings: Settings, **content: object) -> Manifest:
    """Return a manifest with our labels and owner reference, which make the API server delete it with its owner."""
    metadata = {
        "name": key.name,
        "namespace": deployment.namespace,
        "labels": labels.child_labels(deployment.name, settings.version),
        "ownerReferences": [owner_reference(deployment)],
    }
    return {"apiVersion": key.api_version, "kind": key.kind, "metadata": metadata, **content}


def shared_child(deployment: LLMDeployment, key: ChildKey, settings: Settings, **content: object) -> Manifest:
    """Return a manifest of a child that several LLMDeployments own, deleted by the API server with the last of them.

    Each of them applies it in its own name, so its content must not depend on the one that applies it.
    """
    metadata = {
        "name": key.name,
        "namespace": deployment.namespace,
        "labels": labels.shared_labels(settings.version),
        "ownerReferences": [reference(deployment)],
    }
    return {"apiVersion": key.api_version, "kind": key.kind, "metadata": metadata, **content}


def owner_reference(deployment: LLMDeployment) -> Manifest:
    return {**reference(deployment), "controller": True, "blockOwnerDeletion": True}


def reference(deployment: LLMDeployment) -> Manifest:
    return {
        "apiVersion": api.API_VERSION,
        "kind": api.KIND,
        "name": deployment.name,
        "uid": deployment.metadata.uid,
    }


def field_manager(child: Manifest, owner: str) -> str:
    """Return the field manager that applies a child of the LLMDeployment `owner`: its own if the child is shared."""
    return f"{labels.FIELD_MANAGER}/{owner}" if is_shared(child) else labels.FIELD_MANAGER


def is_shared(child: Manifest) -> bool:
    return bool(child["metadata"].get("labels", {}).get(labels.LLMDEPLOYMENT_LABEL) == "")


def is_owned(existing: Manifest, deployment: LLMDeployment) -> bool:
    """Return True if an object has our owner reference."""
    return deployment.metadata.uid in owners_of(existing)


def owned_by(owner: Manifest, objects: Iterable[Manifest]) -> tuple[Manifest, ...]:
    """Return the objects that refer to an owner. Anybody in the namespace may give an object our label."""
    uid = owner.get("metadata", {}).get("uid")
    return tuple(each for each in objects if uid in owners_of(each))


def owned_pods(pods: Iterable[Manifest], replica_sets: Iterable[Manifest]) -> tuple[Manifest, ...]:
    """Return the pods that one of these ReplicaSets owns."""
    uids = {each["metadata"]["uid"] for each in replica_sets}
    return tuple(pod for pod in pods if uids & owners_of(pod))


def has_label(existing: Manifest, deployment: LLMDeployment) -> bool:
    """Return True if an object has the label of our children."""
    given = existing["metadata"].get("labels", {})
    return bool(given.get(labels.LLMDEPLOYMENT_LABEL) == deployment.name)


def may_apply(existing: Manifest, deployment: LLMDeployment) -> bool:
    """Return True for an object that we own, share, or may adopt: one with our label and without a controller."""
    if is_owned(existing, deployment) or is_shared(existing):
        return True
    references = existing["metadata"].get("ownerReferences", [])
    is_orphan = not any(reference.get("controller") for reference in references)
    return is_orphan and has_label(existing, deployment)


def may_delete(existing: Manifest, deployment: LLMDeployment) -> bool:
    """Return True for an object of ours that is not being deleted already.

    It has our owner reference, and our label. Of shared objects it is the Job that downloads as our spec asks.
    """
    is_ours = has_label(existing, deployment) or is_followed(existing, deployment)
    return is_owned(existing, deployment) and is_ours and not is_terminating(existing)


def may_release(existing: Manifest, deployment: LLMDeployment) -> bool:
    """Return True for a shared object with our owner reference that is not deleted, nor being deleted already."""
    is_kept = not is_terminating(existing) and not may_delete(existing, deployment)
    return is_owned(existing, deployment) and is_shared(existing) and is_kept


def is_of_namesake(existing: Manifest, deployment: LLMDeployment) -> bool:
    """Return True for an object that is not ours, and of a deleted LLMDeployment of our name: Kubernetes deletes it."""
    named = {"apiVersion": api.API_VERSION, "kind": api.KIND, "name": deployment.name}
    references = existing["metadata"].get("ownerReferences", [])
    return any(reference.items() >= named.items() for reference in references)


def is_terminating(existing: Manifest | None) -> bool:
    return existing is not None and "deletionTimestamp" in existing["metadata"]


def is_followed(existing: Manifest, deployment: LLMDeployment) -> bool:
    """Return True if this LLMDeployment may replace the unfinished Job: it created it, or its creator is gone."""
    follows = existing["metadata"].get("annotations", {}).get(labels.FETCH_OWNER_ANNOTATION)
    is_decided_here = follows == deployment.metadata.uid or follows not in owners_of(existing)
    return follows is not None and is_decided_here and not is_complete(existing)


def is_complete(job: Manifest) -> bool:
    """Return True for a Job that has ended well."""
    conditions = job.get("status", {}).get("conditions", ())
    return any((entry["type"], entry["status"]) == ("Complete", "True") for entry in conditions)
