"""The served names that LLMDeployments claim, over all that one router serves."""

from dataclasses import dataclass, field
from datetime import datetime

from engine_server.contract.api import Key
from engine_server.contract.served_names import NameClaim, holders
from llm_operator.observed import Manifest


def claim_of(manifest: Manifest) -> NameClaim:
    """Return the claim of an LLMDeployment, which need not be valid otherwise."""
    metadata = manifest["metadata"]
    served = manifest.get("spec", {}).get("model", {}).get("servedNames") or [metadata["name"]]
    created = metadata.get("creationTimestamp")
    age = datetime.fromisoformat(created).timestamp() if created else 0.0
    return NameClaim(age, Key.of(manifest), tuple(served))


@dataclass(slots=True)
class Claims:
    """The current claim of every LLMDeployment."""

    by_key: dict[Key, NameClaim] = field(default_factory=dict)
    # The claim that each name means; None after a change.
    _holders: dict[str, NameClaim] | None = None

    def put(self, key: Key, claim: NameClaim | None) -> set[Key]:
        """Replace or remove the claim of `key`; return the others that hold or lose other names by it."""
        before = self.by_key.pop(key, None)
        if claim is not None:
            self.by_key[key] = claim
        if claim == before:
            return set()
        self._holders = None
        touched = {name for each in (before, claim) if each for name in each.served_names}
        return {other.key for other in self.by_key.values() if not touched.isdisjoint(other.served_names)} - {
            key
        }

    def held_by_others(self, key: Key) -> tuple[tuple[str, str], ...]:
        """Return the served names of `key` that mean another deployment, each with that deployment."""
        mine = self.by_key.get(key)
        if mine is None:
            return ()
        if self._holders is None:
            self._holders = holders(self.by_key.values())
        current = [(name, self._holders[name].key) for name in sorted(set(mine.served_names))]
        return tuple((name, str(holder)) for name, holder in current if holder != key)
