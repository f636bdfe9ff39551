"""What the operator remembers of an LLMDeployment between reconciles. A restart may lose all of it."""

import json
from dataclasses import dataclass, field

from llm_operator import metrics
from llm_operator.observed import ChildKey, Manifest

# Metadata that changes with the status too.
VOLATILE = {"resourceVersion", "managedFields"}


@dataclass(slots=True)
class Record:
    """What was seen, applied and reported."""

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
        """Return True if `planned` was applied, and what came of it has not changed since."""
        return existing is not None and self.applied.get(key) == fingerprint(planned, existing)

    def settle(self, key: ChildKey, planned: Manifest, existing: Manifest) -> None:
        """Record that `existing` came of applying `planned`."""
        self.applied[key] = fingerprint(planned, existing)


def fingerprint(planned: Manifest, existing: Manifest) -> int:
    metadata = {key: existing["metadata"][key] for key in existing["metadata"].keys() - VOLATILE}
    return hash(json.dumps([planned, {**existing, "metadata": metadata, "status": None}], sort_keys=True))
