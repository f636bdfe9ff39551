"""The source of deployments in a cluster: names from LLMDeployments, addresses from EndpointSlices."""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence

import aiohttp
import msgspec

from engine_server.contract.api import Key, collection_path
from engine_server.contract.labels import HTTP_PORT_NAME, LLMDEPLOYMENT_LABEL

from .endpoints import Address, Deployment, Directory
from .kubernetes_access import Access
from .kubernetes_watch import Identity, Object, Watch


class Model(msgspec.Struct, rename="camel"):
    served_names: list[str] = []


class Routing(msgspec.Struct):
    policy: str | None = None


class Spec(msgspec.Struct):
    model: Model = msgspec.field(default_factory=Model)
    routing: Routing = msgspec.field(default_factory=Routing)


class LLMDeployment(Object):
    spec: Spec = msgspec.field(default_factory=Spec)


class Conditions(msgspec.Struct):
    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None

    @property
    def usable(self) -> bool:
        """Absent means: serving is ready's, ready is true, terminating is false."""
        serving = self.serving if self.serving is not None else self.ready is not False
        return serving and not self.terminating


class Target(msgspec.Struct):
    name: str = ""


class SliceEndpoint(msgspec.Struct, rename="camel"):
    addresses: list[str]
    conditions: Conditions = msgspec.field(default_factory=Conditions)
    target_ref: Target | None = None


class Port(msgspec.Struct):
    name: str | None = None
    port: int | None = None


class EndpointSlice(Object, rename="camel"):
    address_type: str = "IPv4"
    endpoints: list[SliceEndpoint] | None = None
    ports: list[Port] | None = None

    @property
    def owner(self) -> Key:
        return Key(self.metadata.namespace, self.metadata.labels.get(LLMDEPLOYMENT_LABEL, ""))

    @property
    def port(self) -> int | None:
        ports = self.ports or []
        return next((p.port for p in ports if p.name == HTTP_PORT_NAME), ports[0].port if ports else None)


def addresses(slices: Iterable[EndpointSlice]) -> tuple[Address, ...]:
    """Return one address for each serving pod, in any of its slices."""
    by_pod: dict[str, Address] = {}
    for one in sorted(slices, key=lambda one: one.address_type):  # IPv4 before IPv6, where a pod has both
        for endpoint in one.endpoints or ():
            if endpoint.conditions.usable and one.port and one.address_type != "FQDN":
                pod = endpoint.target_ref.name if endpoint.target_ref else endpoint.addresses[0]
                by_pod.setdefault(pod, Address(endpoint.addresses[0], one.port))
    return tuple(sorted(by_pod.values()))


class KubernetesSource:
    def __init__(self, access: Access, namespaces: Sequence[str]) -> None:
        self._known: dict[Key, LLMDeployment] = {}
        self._slices: defaultdict[Key, dict[Identity, EndpointSlice]] = defaultdict(dict)
        self._watches: list[Watch[LLMDeployment] | Watch[EndpointSlice]] = []
        for namespace in namespaces or (None,):
            path = collection_path(namespace)
            self._watches.append(Watch(access, path, LLMDeployment, self._on_deployment))
            scope = f"/namespaces/{namespace}" if namespace else ""
            path = f"/apis/discovery.k8s.io/v1{scope}/endpointslices"
            self._watches.append(
                Watch(access, path, EndpointSlice, self._on_slice, selector=LLMDEPLOYMENT_LABEL)
            )

    @property
    def synced(self) -> bool:
        return all(watch.synced for watch in self._watches)

    async def run(self, directory: Directory) -> None:
        self._directory = directory
        async with aiohttp.ClientSession() as session:
            await asyncio.gather(*(watch.run(session) for watch in self._watches))

    def _on_deployment(self, one: LLMDeployment, there: bool) -> None:
        key = Key(*one.identity)
        if there:
            self._known[key] = one
        else:
            self._known.pop(key, None)
        self._tell(key)

    def _on_slice(self, one: EndpointSlice, there: bool) -> None:
        slices = self._slices[one.owner]
        if there:
            slices[one.identity] = one
        else:
            slices.pop(one.identity, None)
        self._tell(one.owner)

    def _tell(self, key: Key) -> None:
        if told := self._known.get(key):
            self._directory.put(deployment(key, told, self._slices[key].values()))
        else:
            self._directory.remove(key)


def deployment(key: Key, told: LLMDeployment, slices: Iterable[EndpointSlice]) -> Deployment:
    return Deployment(
        key,
        tuple(told.spec.model.served_names) or (key.name,),
        addresses(slices),
        told.metadata.creation_timestamp.timestamp() if told.metadata.creation_timestamp else 0.0,
        told.spec.routing.policy,
        vouched=True,
    )
