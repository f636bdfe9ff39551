"""The metadata that ties a child to its LLMDeployment, and the decisions that depend on it."""

from engine_server.contract import api, labels
from llm_operator.api.spec import LLMDeployment
from llm_operator.observed import ChildKey, Manifest
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


def owner_reference(deployment: LLMDeployment) -> Manifest:
    return {
        "apiVersion": api.API_VERSION,
        "kind": api.KIND,
        "name": deployment.name,
        "uid": deployment.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def is_owned(existing: Manifest, deployment: LLMDeployment) -> bool:
    """Return True if an object has our owner reference."""
    references = existing["metadata"].get("ownerReferences", [])
    return any(reference["uid"] == deployment.metadata.uid for reference in references)


def has_label(existing: Manifest, deployment: LLMDeployment) -> bool:
    """Return True if an object has the label of our children."""
    given = existing["metadata"].get("labels", {})
    return bool(given.get(labels.LLMDEPLOYMENT_LABEL) == deployment.name)


def may_apply(existing: Manifest, deployment: LLMDeployment) -> bool:
    """Return True for an object that we own, or may adopt: one with our label and without a controller."""
    if is_owned(existing, deployment):
        return True
    references = existing["metadata"].get("ownerReferences", [])
    is_orphan = not any(reference.get("controller") for reference in references)
    return is_orphan and has_label(existing, deployment)


def may_delete(existing: Manifest, deployment: LLMDeployment) -> bool:
    """Return True for an object with both our owner reference and our label that is not being deleted already."""
    is_terminating = "deletionTimestamp" in existing["metadata"]
    return is_owned(existing, deployment) and has_label(existing, deployment) and not is_terminating
