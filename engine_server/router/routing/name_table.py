"""The meanings of model names, kept up to date: a change costs what its own names cost, however many there are."""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

from engine_server.contract.cluster.api import Key
from engine_server.contract.cluster.served_names import NameClaim, Standing, standings

T = TypeVar("T")
# The deployment, and its adapter or an empty string.
Identity = tuple[Key, str]


class NameTable(Generic[T]):
    """What each name means, and under which names each owner is listed."""

    def __init__(self) -> None:
        self._owners: dict[Identity, T] = {}
        self._claims: dict[Identity, NameClaim] = {}
        # By name, in order.
        self._standings: dict[str, list[Standing]] = {}
        self._holders: dict[str, T] = {}
        # Returns what a name means, or None; each request would pay the call of a method.
        self.get: Callable[[str], T | None] = self._holders.get
        self._listed: dict[Identity, list[str]] = {}
        # All listed names.
        self._sorted: list[str] = []

    def listed(self) -> Iterator[str]:
        """Yield the names to list, in order."""
        return iter(self._sorted)

    def listed_of(self, claim: NameClaim) -> Sequence[str]:
        """Return the names under which a claim's owner is listed: served names that it holds, else by falling rank."""
        return self._listed.get((claim.key, claim.adapter), ())

    def change(self, gone: Sequence[NameClaim], owners: Mapping[NameClaim, T]) -> None:
        """Remove claims, and then add or replace those of `owners`."""
        added = {(claim.key, claim.adapter): claim for claim in owners}
        unchanged = {identity for identity, claim in added.items() if self._claims.get(identity) == claim}
        changed: set[str] = set()
        affected: set[Identity] = set()
        for claim in gone:
            identity = claim.key, claim.adapter
            if identity in self._claims and identity not in unchanged:
                del self._owners[identity], self._claims[identity]
                affected.add(identity)
                for name, standing in standings(claim):
                    remove(self._standings[name], standing)
                    changed.add(name)
        for claim, owner in owners.items():
            identity = claim.key, claim.adapter
            before, self._owners[identity] = self._owners.get(identity), owner
            if identity in unchanged:
                for name in claim.names:
                    if self._holders[name] is before:
                        self._holders[name] = owner
                continue
            self._claims[identity] = claim
            affected.add(identity)
            for name, standing in standings(claim):
                insort(self._standings.setdefault(name, []), standing)
                changed.add(name)
                # The one that held it.
                affected.update(each.identity for each in self._standings[name][:2])
        for name in changed:
            if ranked := self._standings[name]:
                self._holders[name] = self._owners[ranked[0].identity]
                affected.add(ranked[0].identity)
            else:
                del self._standings[name]
                self._holders.pop(name, None)
        self._list(affected)

    def _list(self, affected: set[Identity]) -> None:
        """Bring the list of names up to date with what these owners hold."""
        listed = {identity: self._names(identity) for identity in affected}
        for identity in affected:
            for name in self._listed.pop(identity, ()):
                remove(self._sorted, name)
        for identity, names in listed.items():
            if names:
                self._listed[identity] = names
            for name in names:
                insort(self._sorted, name)

    def _names(self, identity: Identity) -> list[str]:
        claim = self._claims.get(identity)
        if claim is None:
            return []
        owner = self._owners[identity]
        for names in (claim.served_names, *claim.names_by_rank):
            held = [name for name in dict.fromkeys(names) if self._holders[name] is owner]
            if held:
                return held
        return []


def remove(ordered: list, item: object) -> None:  # type: ignore[type-arg]
    """Remove an item of an ordered list."""
    del ordered[bisect_left(ordered, item)]
