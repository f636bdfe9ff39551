"""Who holds which served name, over all the LLMDeployments that one router serves."""

from dataclasses import dataclass, field
from typing import NamedTuple

from llm_operator.cluster import Key
from llm_operator.observed import Manifest


class Claim(NamedTuple):
    """Claims sort as the router ranks them: the oldest holds a contested name."""

    created: str
    key: Key
    served_names: frozenset[str]

    @classmethod
    def of(cls, manifest: Manifest) -> "Claim":
        metadata = manifest["metadata"]
        model = manifest.get("spec", {}).get("model", {})
        served = model.get("servedNames") or [metadata["name"]]
        return cls(
            metadata.get("creationTimestamp", ""),
            Key(metadata["namespace"], metadata["name"]),
            frozenset(served),
        )


@dataclass(slots=True)
class Claims:
    by_key: dict[Key, Claim] = field(default_factory=dict)

    def put(self, claim: Claim) -> set[Key]:
        """Those whose names this may have given or taken."""
        if self.by_key.get(claim.key) == claim:
            return set()
        touched = self.drop(claim.key) | self.rivals(claim)
        self.by_key[claim.key] = claim
        return touched

    def drop(self, key: Key) -> set[Key]:
        claim = self.by_key.pop(key, None)
        return self.rivals(claim) if claim is not None else set()

    def rivals(self, claim: Claim) -> set[Key]:
        return {
            other.key
            for other in self.by_key.values()
            if other.key != claim.key and other.served_names & claim.served_names
        }

    def held_by_others(self, key: Key) -> tuple[tuple[str, str], ...]:
        """The names that `key` asks for and an older one has, each with who has it."""
        mine = self.by_key.get(key)
        if mine is None:
            return ()
        holders = []
        for name in sorted(mine.served_names):
            oldest = min(claim for claim in self.by_key.values() if name in claim.served_names)
            if oldest.key != key:
                holders.append((name, str(oldest.key)))
        return tuple(holders)
