"""EndpointSlices, and the one address that each pod in them has."""

from collections.abc import Callable, Iterable

import msgspec

from engine_server.contract.base.ranges import PortNumber
from engine_server.contract.cluster.api import Key
from engine_server.contract.cluster.kubernetes_objects import Metadata, Object
from engine_server.contract.cluster.labels import LLMDEPLOYMENT_LABEL, SERVICE_NAME_LABEL, child_name


class Conditions(msgspec.Struct):
    """The state of a pod in an EndpointSlice."""

    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None

    @property
    def usable(self) -> bool:
        """True if the pod is serving and not terminating. By default serving is as ready, which is true."""
        serving = self.serving if self.serving is not None else self.ready is not False
        return serving and not self.terminating


class Target(msgspec.Struct):
    """The pod of an endpoint."""

    name: str = ""


class SliceEndpoint(msgspec.Struct, rename="camel"):
    """One pod in an EndpointSlice."""

    addresses: list[str]
    conditions: Conditions = msgspec.field(default_factory=Conditions)
    target_ref: Target | None = None


class Port(msgspec.Struct):
    """A port of all pods in an EndpointSlice."""

    name: str | None = None
    port: PortNumber | None = None


class SliceLabels(msgspec.Struct):
    """The labels that are read. Those of a Service are copied to its slices, and may have a megabyte."""

    deployment: str = msgspec.field(default="", name=LLMDEPLOYMENT_LABEL)
    service: str = msgspec.field(default="", name=SERVICE_NAME_LABEL)


class SliceMetadata(Metadata, rename="camel"):
    """The metadata of an EndpointSlice."""

    labels: SliceLabels = msgspec.field(default_factory=SliceLabels)


class EndpointSlice(Object, rename="camel"):
    """Addresses of pods of one Service. Several slices may belong to it, by size and address family."""

    metadata: SliceMetadata
    address_type: str = "IPv4"
    endpoints: list[SliceEndpoint] | None = None
    ports: list[Port] | None = None

    @property
    def owner(self) -> Key | None:
        """The key of the deployment; None for a slice of another Service than its own, which may have its label."""
        labels = self.metadata.labels
        if labels.service != child_name(labels.deployment):
            return None
        return Key(self.metadata.namespace, labels.deployment)

    def port(self, name: str) -> int | None:
        """Return the port of this name, None without one."""
        return next((each.port for each in self.ports or () if each.name == name), None)

    @property
    def first_port(self) -> int | None:
        return self.ports[0].port if self.ports else None


class EndpointSliceList(msgspec.Struct):
    """The answer to a list of EndpointSlices."""

    items: list[EndpointSlice]


def addresses_by_pod(
    slices: Iterable[EndpointSlice],
    port_of: Callable[[EndpointSlice], int | None],
    includes: Callable[[SliceEndpoint], bool],
) -> dict[str, tuple[str, int]]:
    """Return host and port of each included pod by its name, whichever slices have it; by its host if it has none.

    IPv4 comes before IPv6, so it counts where a pod has both. Slices of DNS names, or without a port, are left out.
    """
    found: dict[str, tuple[str, int]] = {}
    for one in sorted(slices, key=lambda one: one.address_type):
        port = port_of(one)
        if port is None or one.address_type == "FQDN":
            continue
        for endpoint in filter(includes, one.endpoints or ()):
            host = endpoint.addresses[0]
            pod = endpoint.target_ref.name if endpoint.target_ref else host
            found.setdefault(pod, (host, port))
    return found
