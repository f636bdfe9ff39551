"""The subset of LLMDeployments that the router reads."""

from datetime import datetime

import msgspec

from engine_server.contract.base.ranges import Count, Total
from engine_server.contract.cluster.adapters import DeploymentAdapter
from engine_server.contract.cluster.drain import DEFAULT_DRAIN_TIMEOUT_SECONDS
from engine_server.contract.cluster.kubernetes_objects import Object


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
    # Restarts of the replicas' containers.
    restarts: Count = 0
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


class Message(msgspec.Struct):
    """The message of an error."""

    message: str = ""
