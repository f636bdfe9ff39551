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
        served = manifest.get("spec", {}).get("model", {}).get("servedNames") or [metadata["name"]]
        return cls(metadata.get("creationTimestamp", ""), Key.of(manifest), frozenset(served))


@dataclass(slots=True)
class Claims:
    by_key: dict[Key, Claim] = field(default_factory=dict)

    def put(self, key: Key, claim: Claim | None) -> set[Key]:
        """What `key` asks for from now on; returns the others whose names this may have given or taken."""
        before = self.by_key.pop(key, None)
        if claim is not None:
            self.by_key[key] = claim
        if claim == before:
            return set()
        touched = {name for each in (before, claim) if each for name in each.served_names}
        return {other.key for other in self.by_key.values() if touched & other.served_names} - {key}

    def held_by_others(self, key: Key) -> tuple[tuple[str, str], ...]:
        """The names that `key` asks for and an older one has, each with who has it."""
        mine = self.by_key.get(key)
        oldest = {
            name: min(claim for claim in self.by_key.values() if name in claim.served_names).key
            for name in sorted(mine.served_names if mine else ())
        }
        return tuple((name, str(holder)) for name, holder in oldest.items() if holder != key)
