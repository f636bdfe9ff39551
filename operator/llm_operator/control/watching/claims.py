"""The names that LLMDeployments claim, over all that one router serves."""

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime

from engine_server.contract.api import Key
from engine_server.contract.served_names import NameClaim, claimable, holders
from llm_operator.observed import Manifest


def claim_of(manifest: Manifest) -> NameClaim:
    """Return the claim of an LLMDeployment, which need not be valid otherwise."""
    metadata = manifest["metadata"]
    served = manifest.get("spec", {}).get("model", {}).get("servedNames") or [metadata["name"]]
    adapters = [entry["name"] for entry in manifest.get("spec", {}).get("adapters") or ()]
    created = metadata.get("creationTimestamp")
    age = datetime.fromisoformat(created).timestamp() if created else 0.0
    key = Key.of(manifest)
    return NameClaim(age, key, claimable((*served, *adapters), key))


@dataclass(slots=True)
class Claims:
    """The current claim of every LLMDeployment, indexed by name."""

    by_key: dict[Key, NameClaim] = field(default_factory=dict)
    _claimants: defaultdict[str, set[Key]] = field(default_factory=lambda: defaultdict(set))

    def put(self, key: Key, claim: NameClaim | None) -> set[Key]:
        """Replace or remove the claim of `key`; return the others that claim a name which changes by it."""
        before = self.by_key.get(key)
        if claim == before:
            return set()
        affected: set[Key] = set()
        if before is not None:
            del self.by_key[key]
            affected |= self._withdraw(before)
        if claim is not None:
            self.by_key[key] = claim
            affected |= self._register(claim)
        return affected - {key}

    def held_by_others(self, key: Key) -> tuple[tuple[str, str], ...]:
        """Return the served names of `key` that mean another deployment, each with that deployment."""
        own = self.by_key.get(key)
        if own is None:
            return ()
        contenders = {other for name in own.served_names for other in self._claimants[name]}
        table = holders(self.by_key[other] for other in contenders)
        current = [(name, table[name].key) for name in sorted(set(own.served_names))]
        return tuple((name, str(holder)) for name, holder in current if holder != key)

    def _register(self, claim: NameClaim) -> set[Key]:
        """Add `claim` to the index; return the claimants of its names."""
        affected: set[Key] = set()
        for name in claim.names:
            self._claimants[name].add(claim.key)
            affected |= self._claimants[name]
        return affected

    def _withdraw(self, claim: NameClaim) -> set[Key]:
        """Remove `claim` from the index; return the claimants that its names had."""
        affected: set[Key] = set()
        for name in claim.names:
            affected |= self._claimants[name]
            self._claimants[name].discard(claim.key)
            if not self._claimants[name]:
                del self._claimants[name]
        return affected
