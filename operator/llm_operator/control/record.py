"""The memory of what was applied. It may be lost at a restart: a hash on each child says what its last apply was."""

import json
from dataclasses import dataclass, field
from typing import Any

import msgspec

from engine_server.contract.cluster.labels import APPLIED_ANNOTATION
from llm_operator.api.spec_hash import digest
from llm_operator.observed import ChildKey, Manifest
from llm_operator.plan.ownership import is_shared


@dataclass(slots=True)
class Record:
    """One LLMDeployment: the children that were applied."""

    # Fingerprints of applied children.
    applied: dict[ChildKey, int] = field(default_factory=dict)

    def is_settled(self, key: ChildKey, planned: Manifest, existing: Manifest | None) -> bool:
        """Return True if `planned` was applied, and the object has not changed since; remember it."""
        if existing is None:
            return False
        if self.applied.get(key) == fingerprint(planned, existing):
            return True
        if is_applied(planned, existing):
            self.settle(key, planned, existing)
            return True
        return False

    def settle(self, key: ChildKey, planned: Manifest, existing: Manifest) -> None:
        """Record that applying `planned` gave `existing`."""
        self.applied[key] = fingerprint(planned, existing)


def fingerprint(planned: Manifest, existing: Manifest) -> int:
    """Hash a planned child and the object that exists, without what changes with the object's status."""
    return hash(msgspec.json.encode([planned, {**existing, "status": None}], order="sorted"))


def marked(planned: Manifest) -> Manifest:
    """Return a planned child with the annotation of its hash. Shared children have no one plan, and so no hash."""
    if is_shared(planned):
        return planned
    metadata = planned["metadata"]
    annotations = {**metadata.get("annotations", {}), APPLIED_ANNOTATION: plan_hash(planned)}
    return {**planned, "metadata": {**metadata, "annotations": annotations}}


def is_applied(planned: Manifest, existing: Manifest) -> bool:
    """Return True if the last apply of an object was `planned`, and every field still has the planned value.

    The API server writes some values in another form, such as quantities. Then the answer is False, and an apply that
    changes nothing settles it. A shared child has further owners.
    """
    if is_shared(planned):
        owners = existing["metadata"].get("ownerReferences", ())
        is_owner = all(owner in owners for owner in planned["metadata"]["ownerReferences"])
        return is_owner and has_shared_values(planned, existing)
    annotations = existing["metadata"].get("annotations", {})
    return annotations.get(APPLIED_ANNOTATION) == plan_hash(planned) and has_values(existing, planned)


def lacks_owner_alone(planned: Manifest, existing: Manifest) -> bool:
    """Return True if a shared child is as planned, but that others own it alone."""
    return bool(existing["metadata"].get("ownerReferences")) and has_shared_values(planned, existing)


def has_shared_values(planned: Manifest, existing: Manifest) -> bool:
    """Return True if both are shared children, and `existing` has each value of `planned`, whoever owns it."""
    are_shared = is_shared(planned) and is_shared(existing)
    return are_shared and has_values(without_owners(existing), without_owners(planned))


def without_owners(manifest: Manifest) -> Manifest:
    metadata = {key: value for key, value in manifest["metadata"].items() if key != "ownerReferences"}
    return {**manifest, "metadata": metadata}


def plan_hash(planned: Manifest) -> str:
    return digest(json.dumps(planned, sort_keys=True).encode())


def has_values(existing: Any, planned: Any) -> bool:
    """Return True if `existing` has each value of `planned`. The API server leaves empty values out."""
    if existing is None:
        return not planned
    if isinstance(planned, dict):
        return isinstance(existing, dict) and all(
            has_values(existing.get(key), value) for key, value in planned.items()
        )
    if isinstance(planned, list):
        return (
            isinstance(existing, list)
            and len(existing) == len(planned)
            and all(map(has_values, existing, planned))
        )
    return bool(existing == planned)
