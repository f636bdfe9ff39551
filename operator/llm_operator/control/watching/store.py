"""The watched objects, indexed by the LLMDeployments that they belong to, so that reconciling reads no API.

Objects are kept as JSON: Python's dictionaries take five times as much memory, and one that is decoded for each reader
cannot be changed by another.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from engine_server.contract.base.nesting import decode_shallow
from engine_server.contract.cluster import api
from engine_server.contract.cluster.api import Key
from engine_server.contract.cluster.labels import LLMDEPLOYMENT_LABEL
from llm_operator.control.watching.claims import Claims, claim_of
from llm_operator.control.watching.room import Room
from llm_operator.control.watching.scales import Scales
from llm_operator.control.watching.trim import trimmed
from llm_operator.kinds import CHILD_KINDS, LLMDEPLOYMENTS, Resource
from llm_operator.observed import ChildKey, Manifest

NOBODY: frozenset[Key] = frozenset()
MANIFEST = msgspec.json.Decoder(dict[str, Any])


class Ref(NamedTuple):
    """The identity of a watched object in the cluster."""

    resource: Resource
    namespace: str
    name: str

    @property
    def path(self) -> str:
        """The path of the object in the API."""
        return self.resource.path(self.namespace, self.name)

    @classmethod
    def of(cls, resource: Resource, manifest: Manifest) -> "Ref":
        return cls(resource, *Key.of(manifest))


class Entry(NamedTuple):
    """One object, without what nothing reads."""

    version: int
    owners: frozenset[Key]
    # None if it is not kept: it is nobody's, or its namespace has no room left.
    body: bytes | None
    # It has an owner, which may be another object, and Kubernetes deletes it with that.
    is_owned: bool = True


@dataclass(slots=True)
class Store:
    """The newest known state of every watched object.

    Three sources race: watches, relists, and the answers to our own writes. The greater resource version wins.
    """

    entries: dict[Ref, Entry] = field(default_factory=dict)
    owned: defaultdict[Key, set[Ref]] = field(default_factory=lambda: defaultdict(set))
    # The resource versions of deletions, which a list that was started before them must not undo.
    deletions: dict[Ref, int] = field(default_factory=dict)
    room: Room = field(default_factory=Room)
    claims: Claims = field(default_factory=Claims)
    scales: Scales = field(default_factory=Scales)

    def put(self, resource: Resource, manifest: Manifest) -> frozenset[Key]:
        """Store an object unless a newer state of it is known; return the LLMDeployments that are affected."""
        ref, version = Ref.of(resource, manifest), version_of(manifest)
        known = self.entries.get(ref)
        if version <= max(known.version if known else 0, self.deletions.get(ref, 0)):
            return NOBODY
        entry = self._entry(ref, manifest)
        self._replace(ref, entry)
        if resource == LLMDEPLOYMENTS:
            self.scales.put(Key.of(manifest), manifest)
        if known is not None and known[1:] == entry[1:] and entry.body is not None:
            return NOBODY
        affected = entry.owners | (known.owners if known else NOBODY)
        if known is not None and known.owners != entry.owners and is_shared_alike(known, entry):
            affected = entry.owners ^ known.owners
        if resource == LLMDEPLOYMENTS:
            affected |= self.claims.put(Key.of(manifest), claim_of(manifest, self.claims.organizations))
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
        """Return an LLMDeployment that is kept."""
        entry = self.entries.get(Ref(LLMDEPLOYMENTS, *key))
        return decoded(entry.body) if entry and entry.body is not None else None

    def children(self, key: Key) -> dict[ChildKey, Manifest]:
        """Return the children of an LLMDeployment, planned or not."""
        return {child_key(ref): decoded(body) for ref, body in self._kept(key) if ref.resource in CHILD_KINDS}

    def objects(self, resource: Resource, key: Key) -> tuple[Manifest, ...]:
        """Return the objects of one kind that belong to an LLMDeployment and are kept."""
        return tuple(decoded(body) for ref, body in self._kept(key) if ref.resource == resource)

    def refs(self, resource: Resource, namespace: str = "") -> list[Ref]:
        """Return the known objects of a kind, in a namespace or in the whole cluster."""
        return [ref for ref in self.entries if ref.resource == resource and namespace in ("", ref.namespace)]

    def unread(self, key: Key) -> list[Ref]:
        """Return what belongs to an LLMDeployment, itself included, and is not kept for want of room.

        What has no owner is left out: it is looked up by its name when it would be adopted.
        """
        return [
            ref
            for ref in sorted(self.owned.get(key, ()))
            if (entry := self.entries[ref]).body is None and entry.is_owned
        ]

    def _entry(self, ref: Ref, manifest: Manifest) -> Entry:
        """Return the entry of an object, with its body if it is somebody's and there is room for it."""
        resource = ref.resource
        is_owned = resource == LLMDEPLOYMENTS or bool(manifest["metadata"].get("ownerReferences"))
        version, belongs_to = version_of(manifest), owners(resource, manifest)
        if not is_owned:
            return Entry(version, belongs_to, None, is_owned=False)
        body = msgspec.json.encode(trimmed(resource, manifest))
        freed = size_of(self.entries.get(ref))
        return Entry(version, belongs_to, body if self.room.has(ref.namespace, len(body) - freed) else None)

    def _kept(self, key: Key) -> Iterator[tuple[Ref, bytes]]:
        """Yield the objects of an LLMDeployment that are kept."""
        for ref in sorted(self.owned.get(key, ())):
            if (body := self.entries[ref].body) is not None:
                yield ref, body

    def _replace(self, ref: Ref, entry: Entry | None) -> None:
        """Replace or remove an entry, and keep the index."""
        if known := self.entries.pop(ref, None):
            self._count(ref.namespace, known, -1)
            for key in known.owners:
                self.owned[key].discard(ref)
                if not self.owned[key]:
                    del self.owned[key]
        if entry is not None:
            self._count(ref.namespace, entry, 1)
            self.entries[ref] = entry
            for key in entry.owners:
                self.owned[key].add(ref)

    def _count(self, namespace: str, entry: Entry, sign: int) -> None:
        if entry.body is not None:
            self.room.keep(namespace, sign * len(entry.body))
        elif entry.is_owned:
            self.room.leave_out(namespace, sign)


def child_key(ref: Ref) -> ChildKey:
    return ChildKey(*CHILD_KINDS[ref.resource], ref.name)


def is_shared_alike(one: Entry, other: Entry) -> bool:
    """Return True for two states of an object that differ in its owners alone: the others need not look at it."""
    if one.body is None or other.body is None:
        return False
    first, second = decoded(one.body), decoded(other.body)
    for state in (first, second):
        state["metadata"].pop("ownerReferences", None)
    return first == second


def size_of(entry: Entry | None) -> int:
    """Return the bytes that an entry keeps."""
    return len(entry.body) if entry is not None and entry.body is not None else 0


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


def decoded(body: bytes) -> dict[str, Any]:
    return decode_shallow(MANIFEST.decode, body)
