"""The source of deployments in a cluster: names from LLMDeployments, addresses from EndpointSlices."""

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

import aiohttp

from engine_server.contract.cluster.adapters import DeploymentAdapter
from engine_server.contract.cluster.api import KIND, Key, collection_path
from engine_server.contract.cluster.endpoint_slices import EndpointSlice, addresses_by_pod
from engine_server.contract.cluster.kubernetes_objects import Identity
from engine_server.contract.cluster.labels import HTTP_PORT_NAME, LLMDEPLOYMENT_LABEL
from engine_server.contract.cluster.served_names import claimable, is_printable
from engine_server.router.metrics import WatchState
from engine_server.router.routing.directory import Adapter, Deployment
from engine_server.router.routing.endpoint import Address
from engine_server.router.sources.kubernetes.access import Access
from engine_server.router.sources.kubernetes.objects import LLMDeployment
from engine_server.router.sources.kubernetes.start import ScaleFromZero, find_obstacle
from engine_server.router.sources.kubernetes.watch import Watch
from engine_server.router.sources.source import Deployments


class KubernetesSource:
    """Watches the LLMDeployments and EndpointSlices of some namespaces, or of the whole cluster if none is given."""

    def __init__(
        self,
        access: Access,
        namespaces: Sequence[str],
        *,
        organizations: Collection[str] = (),
        forwards_credentials: bool = False,
    ) -> None:
        """organizations: what may stand before the slash of a served name that looks like an object's NAMESPACE/NAME.

        forwards_credentials: engines, which anyone who may create an LLMDeployment chooses, get those of clients.
        """
        self.access = access
        self._organizations = organizations
        self._forwards_credentials = forwards_credentials
        self._deployments: dict[Key, LLMDeployment] = {}
        self._slices: defaultdict[Key, dict[Identity, EndpointSlice]] = defaultdict(dict)
        self._slice_owners: dict[Identity, Key] = {}
        # With kind and namespace, which is empty for all.
        self._watches: list[tuple[str, str, Watch[LLMDeployment] | Watch[EndpointSlice]]] = []
        for namespace in namespaces or (None,):
            path = collection_path(namespace)
            deployments = Watch(access, path, LLMDeployment, self._on_deployment)
            scope = f"/namespaces/{namespace}" if namespace else ""
            path = f"/apis/discovery.k8s.io/v1{scope}/endpointslices"
            slices = Watch(
                access,
                path,
                EndpointSlice,
                self._on_slice,
                selector=LLMDEPLOYMENT_LABEL,
                is_wanted=lambda one: one.owner is not None,
            )
            self._watches += [
                (KIND, namespace or "", deployments),
                ("EndpointSlice", namespace or "", slices),
            ]

    @property
    def synced(self) -> bool:
        """True once every collection was listed, but for those of namespaces that are missing or may not be read."""
        watches = [watch for _, _, watch in self._watches]
        return any(watch.synced for watch in watches) and all(
            watch.synced or watch.refused for watch in watches
        )

    def watches(self) -> list[WatchState]:
        """Return the state of each watch."""
        return [
            WatchState(kind, namespace, watch.age, watch.failures) for kind, namespace, watch in self._watches
        ]

    async def run(self, directory: Deployments) -> None:
        """Apply changes to the directory until cancelled."""
        self._directory = directory
        async with aiohttp.ClientSession() as self.session:
            await asyncio.gather(*(watch.run(self.session) for _, _, watch in self._watches))

    def deployment(self, key: Key) -> LLMDeployment | None:
        """Return an LLMDeployment, if it exists."""
        return self._deployments.get(key)

    def _on_deployment(self, deployment: LLMDeployment, exists: bool) -> None:
        key = Key(*deployment.identity)
        if exists:
            self._deployments[key] = deployment
        else:
            self._deployments.pop(key, None)
        self._update(key)

    def _on_slice(self, endpoint_slice: EndpointSlice, exists: bool) -> None:
        identity = endpoint_slice.identity
        owner = endpoint_slice.owner if exists else None
        before = self._slice_owners.pop(identity, None)
        if before is not None and before != owner:
            del self._slices[before][identity]
            self._update(before)
        if owner is not None:
            self._slice_owners[identity] = owner
            self._slices[owner][identity] = endpoint_slice
            self._update(owner)

    def _update(self, key: Key) -> None:
        if found := self._deployments.get(key):
            self._directory.put(self._to_deployment(key, found))
        else:
            self._directory.remove(key)

    def _to_deployment(self, key: Key, found: LLMDeployment) -> Deployment:
        """Return a deployment from its objects in the cluster."""
        created, obstacle = found.metadata.creation_timestamp, find_obstacle(found)
        is_asleep = found.spec.replicas == 0 and not obstacle.permanent
        by_pod = serving_pods(self._slices[key].values())
        return Deployment(
            key,
            claimable(found.spec.model.served_names or (key.name,), key, self._organizations),
            tuple(sorted(by_pod.values())),
            created.timestamp() if created else 0.0,
            found.spec.routing.policy,
            uid=found.metadata.uid,
            drain_timeout=found.spec.rollout.drain_timeout_seconds,
            vouched=True,
            known_to_engines=True,
            takes_credentials=self._forwards_credentials,
            obstacle=obstacle,
            waker=ScaleFromZero(self, key, found.metadata.generation) if is_asleep else None,
            adapters=adapters_of(found, by_pod),
        )


def adapters_of(found: LLMDeployment, by_pod: Mapping[str, Address]) -> tuple[Adapter, ...]:
    """Return the adapters of a deployment's spec, each with the addresses of the serving pods that have it.

    One that the status does not have yet is still to be loaded.
    """
    reported = {adapter.name: adapter for adapter in found.status.adapters}
    adapters: list[Adapter] = []
    for name in dict.fromkeys(adapter.name for adapter in found.spec.adapters):
        if "/" in name or not is_printable(name):
            continue
        state = reported.get(name, DeploymentAdapter(name))
        addresses = tuple(sorted(by_pod[pod] for pod in state.pods if pod in by_pod))
        error = "" if state.pods else state.error or ""
        adapters.append(Adapter(name, addresses, state.hash or "", error))
    return tuple(adapters)


def serving_pods(slices: Iterable[EndpointSlice]) -> dict[str, Address]:
    """Return one address for each serving pod, in any of its slices, by the pod's name."""
    found = addresses_by_pod(
        slices,
        # The first port if none has the name.
        port_of=lambda one: one.port(HTTP_PORT_NAME) or one.first_port,
        includes=lambda endpoint: endpoint.conditions.usable,
    )
    return {pod: Address(*address) for pod, address in found.items()}
