"""The state that the operator keeps of an LLMDeployment between reconciles. All of it may be lost at a restart."""

import json
from dataclasses import dataclass, field

from llm_operator import metrics
from llm_operator.observed import ChildKey, Manifest

# Metadata that changes with the status too.
VOLATILE = {"resourceVersion", "managedFields"}


@dataclass(slots=True)
class Record:
    """One LLMDeployment: the children that were seen and applied, and the conditions that were reported."""

    # Children that the watches have reported, planned or not.
    children: set[ChildKey] = field(default_factory=set)
    # Fingerprints of applied children.
    applied: dict[ChildKey, int] = field(default_factory=dict)
    # Type and status of the reported conditions.
    conditions: list[tuple[str, str]] = field(default_factory=list)

    def count(self, conditions: list[tuple[str, str]]) -> None:
        """Replace the conditions that the metrics count."""
        metrics.recount(self.conditions, conditions)
        self.conditions = conditions

    def is_settled(self, key: ChildKey, planned: Manifest, existing: Manifest | None) -> bool:
        """Return True if `planned` was applied, and the object has not changed since."""
        return existing is not None and self.applied.get(key) == fingerprint(planned, existing)

    def settle(self, key: ChildKey, planned: Manifest, existing: Manifest) -> None:
        """Record that applying `planned` gave `existing`."""
        self.applied[key] = fingerprint(planned, existing)


def fingerprint(planned: Manifest, existing: Manifest) -> int:
    """Hash a planned child and the object that exists, without what changes with the object's status."""
    metadata = {key: existing["metadata"][key] for key in existing["metadata"].keys() - VOLATILE}
    return hash(json.dumps([planned, {**existing, "metadata": metadata, "status": None}], sort_keys=True))
