"""The subset of LLMDeployments and EndpointSlices that the router reads."""

from datetime import datetime

import msgspec

from engine_server.contract.adapters import DeploymentAdapter
from engine_server.contract.api import Key
from engine_server.contract.drain import DEFAULT_DRAIN_TIMEOUT_SECONDS
from engine_server.contract.labels import HTTP_PORT_NAME, LLMDEPLOYMENT_LABEL, SERVICE_NAME_LABEL, child_name
from engine_server.contract.ranges import Count, PortNumber, Total

# Namespace and name.
Identity = tuple[str, str]


class Metadata(msgspec.Struct, rename="camel"):
    """The metadata of an object."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    # Grows with each change of the spec.
    generation: Total = 0
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


class Autoscaling(msgspec.Struct):
    """`spec.autoscaling`."""

    min: Count = 0


class Rollout(msgspec.Struct, rename="camel"):
    """`spec.rollout`."""

    drain_timeout_seconds: Count = DEFAULT_DRAIN_TIMEOUT_SECONDS


class Adapter(msgspec.Struct):
    """An entry of `spec.adapters`."""

    name: str = ""


class Spec(msgspec.Struct):
    """The spec of an LLMDeployment."""

    model: Model = msgspec.field(default_factory=Model)
    routing: Routing = msgspec.field(default_factory=Routing)
    replicas: Count = 1
    autoscaling: Autoscaling | None = None
    rollout: Rollout = msgspec.field(default_factory=Rollout)
    adapters: list[Adapter] = []


class Condition(msgspec.Struct, rename="camel"):
    """A condition that the operator reports."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    observed_generation: Total = 0


class FailedStart(msgspec.Struct):
    """`status.failedStart`."""

    time: datetime
    count: Count


class Status(msgspec.Struct, rename="camel"):
    """The status of an LLMDeployment."""

    conditions: list[Condition] = []
    # Restarts of the replicas' containers; None from operators before 0.2.0.
    restarts: Count | None = None
    adapters: list[DeploymentAdapter] = []
    failed_start: FailedStart | None = None


class LLMDeployment(Object):
    """A deployment: its names, adapters, policy, age and scale, and what the operator reports of it."""

    spec: Spec = msgspec.field(default_factory=Spec)
    status: Status = msgspec.field(default_factory=Status)

    @property
    def is_given_up(self) -> bool:
        """True after a start that failed, also if the number of replicas has changed since it was reported."""
        is_unready = any((each.type, each.status) == ("Ready", "False") for each in self.status.conditions)
        return is_unready and self.status.failed_start is not None

    @property
    def not_ready(self) -> Condition | None:
        """The condition `Ready` if it is false, and not older than the spec."""
        for condition in self.status.conditions:
            if (condition.type, condition.status) == ("Ready", "False"):
                return condition if condition.observed_generation >= self.metadata.generation else None
        return None


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


class EndpointSlice(Object, rename="camel"):
    """Addresses of pods of one Service. Several slices may belong to a deployment, by size and address family."""

    address_type: str = "IPv4"
    endpoints: list[SliceEndpoint] | None = None
    ports: list[Port] | None = None

    @property
    def owner(self) -> Key | None:
        """The key of the deployment; None for a slice of another Service than its own, which may have its label."""
        labels = self.metadata.labels
        name = labels.get(LLMDEPLOYMENT_LABEL, "")
        if labels.get(SERVICE_NAME_LABEL) != child_name(name):
            return None
        return Key(self.metadata.namespace, name)

    @property
    def port(self) -> int | None:
        """The port for HTTP; the first one if none has its name."""
        ports = self.ports or []
        return next((p.port for p in ports if p.name == HTTP_PORT_NAME), ports[0].port if ports else None)


class Message(msgspec.Struct):
    """The message of an error."""

    message: str = ""
