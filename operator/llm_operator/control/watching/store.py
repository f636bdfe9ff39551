"""The watched objects, indexed by the LLMDeployments that they belong to, so that reconciling reads no API.

Objects are kept as JSON: Python's dictionaries take five times as much memory, and one that is decoded for each reader
cannot be changed by another.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from engine_server.contract import api
from engine_server.contract.api import Key
from engine_server.contract.labels import LLMDEPLOYMENT_LABEL
from engine_server.contract.nesting import decode_shallow
from llm_operator.control.resources import CHILD_KINDS, LLMDEPLOYMENTS, PODS, REPLICA_SETS, Resource
from llm_operator.control.watching.claims import Claims, claim_of
from llm_operator.control.watching.scales import Scales
from llm_operator.control.watching.trim import trimmed
from llm_operator.observed import ChildKey, Manifest

NOBODY: frozenset[Key] = frozenset()
MANIFEST = msgspec.json.Decoder(dict[str, Any])


class Ref(NamedTuple):
    """The identity of a watched object in the cluster."""

    resource: Resource
    namespace: str
    name: str

    @classmethod
    def of(cls, resource: Resource, manifest: Manifest) -> "Ref":
        return cls(resource, *Key.of(manifest))


class Entry(NamedTuple):
    """One object, without what nothing reads."""

    version: int
    owners: frozenset[Key]
    body: bytes


@dataclass(slots=True)
class Store:
    """The newest known state of every watched object.

    Three sources race: watches, relists, and the answers to our own writes. The greater resource version wins.
    """

    entries: dict[Ref, Entry] = field(default_factory=dict)
    owned: defaultdict[Key, set[Ref]] = field(default_factory=lambda: defaultdict(set))
    # The resource versions of deletions, which a list that was started before them must not undo.
    deletions: dict[Ref, int] = field(default_factory=dict)
    claims: Claims = field(default_factory=Claims)
    scales: Scales = field(default_factory=Scales)

    def put(self, resource: Resource, manifest: Manifest) -> frozenset[Key]:
        """Store an object unless a newer state of it is known; return the LLMDeployments that are affected."""
        ref, version = Ref.of(resource, manifest), version_of(manifest)
        known = self.entries.get(ref)
        if version <= max(known.version if known else 0, self.deletions.get(ref, 0)):
            return NOBODY
        entry = Entry(version, owners(resource, manifest), msgspec.json.encode(trimmed(resource, manifest)))
        self._replace(ref, entry)
        if resource == LLMDEPLOYMENTS:
            self.scales.put(Key.of(manifest), manifest)
        if known is not None and known[1:] == entry[1:]:
            return NOBODY
        affected = entry.owners | (known.owners if known else NOBODY)
        if resource == LLMDEPLOYMENTS:
            affected |= self.claims.put(Key.of(manifest), claim_of(manifest))
        return affected

    def remove(self, ref: Ref, version: int) -> frozenset[Key]:
        """Remove an object that was deleted at a resource version; return the LLMDeployments that it belonged to."""
        known = self.entries.get(ref)
        self.deletions[ref] = version
        if known is None or known.version > version:
            return NOBODY
        self._replace(ref, None)
        if ref.resource == LLMDEPLOYMENTS:
            self.scales.put(Key(ref.namespace, ref.name), None)
            return known.owners | self.claims.put(Key(ref.namespace, ref.name), None)
        return known.owners

    def forget_deletions(self, resource: Resource, namespace: str, until: int) -> None:
        """Forget the deletions up to the resource version of a list: no older list is awaited any more."""
        for ref, version in list(self.deletions.items()):
            if ref.resource == resource and namespace in ("", ref.namespace) and version <= until:
                del self.deletions[ref]

    def version(self, ref: Ref) -> int:
        """Return the resource version of an object, 0 if it is not known."""
        entry = self.entries.get(ref)
        return entry.version if entry else 0

    def llmdeployment(self, key: Key) -> Manifest | None:
        entry = self.entries.get(Ref(LLMDEPLOYMENTS, *key))
        return decoded(entry) if entry else None

    def children(self, key: Key) -> dict[ChildKey, Manifest]:
        """Return the children of an LLMDeployment, planned or not."""
        return {
            ChildKey(*CHILD_KINDS[ref.resource], ref.name): decoded(self.entries[ref])
            for ref in self._refs(key)
            if ref.resource in CHILD_KINDS
        }

    def pods(self, key: Key) -> tuple[Manifest, ...]:
        return self._objects(PODS, key)

    def replica_sets(self, key: Key) -> tuple[Manifest, ...]:
        return self._objects(REPLICA_SETS, key)

    def refs(self, resource: Resource, namespace: str = "") -> list[Ref]:
        """Return the known objects of a kind, in a namespace or in the whole cluster."""
        return [ref for ref in self.entries if ref.resource == resource and namespace in ("", ref.namespace)]

    def largest(self, resource: Resource) -> int:
        """Return the bytes of the largest object of a kind, 0 if there is none."""
        return max((len(self.entries[ref].body) for ref in self.refs(resource)), default=0)

    def _objects(self, resource: Resource, key: Key) -> tuple[Manifest, ...]:
        return tuple(decoded(self.entries[ref]) for ref in self._refs(key) if ref.resource == resource)

    def _refs(self, key: Key) -> Iterator[Ref]:
        return iter(sorted(self.owned.get(key, ())))

    def _replace(self, ref: Ref, entry: Entry | None) -> None:
        """Replace or remove an entry, and keep the index."""
        if known := self.entries.pop(ref, None):
            for key in known.owners:
                self.owned[key].discard(ref)
                if not self.owned[key]:
                    del self.owned[key]
        if entry is not None:
            self.entries[ref] = entry
            for key in entry.owners:
                self.owned[key].add(ref)


def owners(resource: Resource, manifest: Manifest) -> frozenset[Key]:
    """Return the LLMDeployments that an object belongs to: by its label, and by its owner references.

    A shared child has several owners, and its label names at most one.
    """
    namespace, name = Key.of(manifest)
    if resource == LLMDEPLOYMENTS:
        return frozenset((Key(namespace, name),))
    metadata = manifest["metadata"]
    names = {
        reference["name"]
        for reference in metadata.get("ownerReferences", ())
        if (reference["apiVersion"], reference["kind"]) == (api.API_VERSION, api.KIND)
    }
    if owner := metadata.get("labels", {}).get(LLMDEPLOYMENT_LABEL):
        names.add(owner)
    return frozenset(Key(namespace, owner) for owner in names)


def version_of(manifest: Manifest) -> int:
    """Return the resource version of an object or a list, which grows with every write to the cluster."""
    return int(manifest["metadata"]["resourceVersion"])


def decoded(entry: Entry) -> dict[str, Any]:
    return decode_shallow(MANIFEST.decode, entry.body)
