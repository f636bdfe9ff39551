"""The subset of LLMDeployments and EndpointSlices that the router reads."""

from datetime import datetime

import msgspec

from engine_server.contract.api import Key
from engine_server.contract.labels import HTTP_PORT_NAME, LLMDEPLOYMENT_LABEL

# Namespace and name.
Identity = tuple[str, str]


class Metadata(msgspec.Struct, rename="camel"):
    """The metadata of an object."""

    name: str = ""
    namespace: str = ""
    resource_version: str = ""
    creation_timestamp: datetime | None = None
    labels: dict[str, str] = {}


class Object(msgspec.Struct):
    """The part that every kind has; kinds add the fields that the router needs."""

    metadata: Metadata

    @property
    def identity(self) -> Identity:
        """Namespace and name."""
        return self.metadata.namespace, self.metadata.name


class Model(msgspec.Struct, rename="camel"):
    """`spec.model`."""

    served_names: list[str] = []


class Routing(msgspec.Struct):
    """`spec.routing`."""

    policy: str | None = None


class Spec(msgspec.Struct):
    """The spec of an LLMDeployment."""

    model: Model = msgspec.field(default_factory=Model)
    routing: Routing = msgspec.field(default_factory=Routing)


class LLMDeployment(Object):
    """A deployment: its names, policy and age."""

    spec: Spec = msgspec.field(default_factory=Spec)


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
    port: int | None = None


class EndpointSlice(Object, rename="camel"):
    """Addresses of pods of one Service. Several slices may belong to a deployment, by size and address family."""

    address_type: str = "IPv4"
    endpoints: list[SliceEndpoint] | None = None
    ports: list[Port] | None = None

    @property
    def owner(self) -> Key:
        """The key of the deployment, from the label that slices inherit from their Service."""
        return Key(self.metadata.namespace, self.metadata.labels.get(LLMDEPLOYMENT_LABEL, ""))

    @property
    def port(self) -> int | None:
        """The port for HTTP; the first one if none has its name."""
        ports = self.ports or []
        return next((p.port for p in ports if p.name == HTTP_PORT_NAME), ports[0].port if ports else None)
