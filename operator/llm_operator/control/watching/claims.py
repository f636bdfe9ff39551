"""The names that LLMDeployments claim, over all that one router serves."""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime

from engine_server.contract.cluster.api import Key
from engine_server.contract.cluster.served_names import NameClaim, Standing, claimable, standings
from llm_operator.observed import Manifest


def claim_of(manifest: Manifest, organizations: Collection[str]) -> NameClaim:
    """Return the claim of an LLMDeployment, which need not be valid otherwise.

    organizations: what may stand before the slash of a served name.
    """
    metadata = manifest["metadata"]
    served = manifest.get("spec", {}).get("model", {}).get("servedNames") or [metadata["name"]]
    names = (entry["name"] for entry in manifest.get("spec", {}).get("adapters") or ())
    adapters = [name for name in names if "/" not in name]
    created = metadata.get("creationTimestamp")
    age = datetime.fromisoformat(created).timestamp() if created else 0.0
    key = Key.of(manifest)
    return NameClaim(age, key, claimable((*served, *adapters), key, organizations))


@dataclass(slots=True)
class Claims:
    """The current claim of every LLMDeployment, indexed by name."""

    # What may stand before the slash of a served name that looks like the NAMESPACE/NAME of an object.
    organizations: Collection[str] = ()
    by_key: dict[Key, NameClaim] = field(default_factory=dict)
    # Of each name in order: the first holds it.
    _standings: defaultdict[str, list[Standing]] = field(default_factory=lambda: defaultdict(list))

    def put(self, key: Key, claim: NameClaim | None) -> set[Key]:
        """Replace or remove the claim of `key`; return the others that claim a name with another holder by it."""
        before = self.by_key.pop(key, None)
        if claim is not None:
            self.by_key[key] = claim
        if claim == before:
            return set()
        names = {name for each in (before, claim) if each is not None for name in each.names}
        held = self._holders(names)
        if before is not None:
            self._withdraw(before)
        if claim is not None:
            for name, standing in standings(claim):
                insort(self._standings[name], standing)
        changed = [name for name, holder in self._holders(names).items() if holder != held[name]]
        affected = {each.key for name in changed for each in self._standings.get(name, ())}
        return affected - {key}

    def held_by_others(self, key: Key) -> tuple[tuple[str, str], ...]:
        """Return the served names of `key` that mean another deployment, each with that deployment."""
        own = self.by_key.get(key)
        if own is None:
            return ()
        current = [(name, self._standings[name][0].key) for name in sorted(set(own.served_names))]
        return tuple((name, str(holder)) for name, holder in current if holder != key)

    def _holders(self, names: Iterable[str]) -> dict[str, Key | None]:
        found = {name: self._standings.get(name) for name in names}
        return {name: listed[0].key if listed else None for name, listed in found.items()}

    def _withdraw(self, claim: NameClaim) -> None:
        for name, standing in standings(claim):
            listed = self._standings[name]
            del listed[bisect_left(listed, standing)]
            if not listed:
                del self._standings[name]
