"""Lists that bring the store up to date, and make up for what a watch has lost."""

import logging
from collections.abc import AsyncIterator, Awaitable, Mapping
from dataclasses import dataclass

import msgspec

from engine_server.contract.cluster.api import Key
from engine_server.contract.cluster.labels import LLMDEPLOYMENT_LABEL
from engine_server.contract.cluster.paged_list import ListPage, pages
from llm_operator.control.cluster import Cluster
from llm_operator.control.watching.pages import Pages
from llm_operator.control.watching.store import Ref, Store
from llm_operator.kinds import LLMDEPLOYMENTS, Resource
from llm_operator.observed import Manifest

logger = logging.getLogger(__name__)


class ItemMetadata(msgspec.Struct, frozen=True):
    namespace: str
    name: str
    resource_version: str = msgspec.field(name="resourceVersion")


class Item(msgspec.Struct, frozen=True):
    metadata: ItemMetadata


ITEM = msgspec.json.Decoder(Item)
MANIFEST = msgspec.json.Decoder(Manifest)


@dataclass(frozen=True, slots=True)
class Relist:
    """Lists the objects of a namespace, or of the whole cluster if it is empty."""

    cluster: Cluster
    store: Store
    namespace: str
    sizes: Pages

    async def run(self, resource: Resource) -> AsyncIterator[frozenset[Key]]:
        """List one kind; yield the LLMDeployments that each change affects. Raises `api_errors.FAILURES`.

        They are yielded at once: the store has the change, so no later list would find it again.
        """
        listed: set[Ref] = set()
        version = 0
        async for page in self.pages(resource):
            version = int(page.metadata.resource_version)
            for raw in page.items:
                metadata = ITEM.decode(raw).metadata
                ref = Ref(resource, metadata.namespace, metadata.name)
                listed.add(ref)
                if int(metadata.resource_version) > self.store.version(ref):
                    yield self.put(resource, ref, raw)
        for ref in self.store.refs(resource, self.namespace):
            if ref not in listed:
                yield self.store.remove(ref, version)
        self.store.forget_deletions(resource, self.namespace, version)

    def put(self, resource: Resource, ref: Ref, raw: msgspec.Raw) -> frozenset[Key]:
        """Store an object; return the LLMDeployments that are affected. One that cannot be stored is logged."""
        try:
            return self.store.put(resource, MANIFEST.decode(raw))
        except Exception:
            logger.exception("cannot read %s %s/%s", resource.plural, ref.namespace, ref.name)
            return frozenset()

    def pages(self, resource: Resource) -> AsyncIterator[ListPage]:
        def ask(query: Mapping[str, str], largest: int | None) -> Awaitable[bytes]:
            return self.cluster.request("GET", resource.path(self.namespace), query=query, largest=largest)

        query = {} if resource == LLMDEPLOYMENTS else {"labelSelector": LLMDEPLOYMENT_LABEL}
        return pages(ask, query, self.sizes.of(resource))
