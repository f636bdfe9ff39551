"""The state of the cluster that plan and status depend on."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple, Self

from engine_server.contract import labels
from engine_server.contract.api import Key

# A Kubernetes object as the API server sends and takes it.
Manifest = dict[str, Any]
EPOCH = datetime.fromtimestamp(0, UTC)


class ChildKey(NamedTuple):
    """The identity of a child within the namespace of its LLMDeployment."""

    api_version: str
    kind: str
    name: str

    @classmethod
    def of(cls, child: Manifest) -> Self:
        return cls(child["apiVersion"], child["kind"], child["metadata"]["name"])


class Problem(NamedTuple):
    """A reason in one word, and a message for people."""

    reason: str
    message: str


def workload_key(name: str) -> ChildKey:
    """Return the key of the Deployment that runs the engines of the LLMDeployment `name`."""
    return ChildKey("apps/v1", "Deployment", labels.child_name(name))


@dataclass(frozen=True, slots=True)
class Observed:
    """One LLMDeployment and its surroundings at one moment; empty without a cluster."""

    # The LLMDeployment itself, valid or not.
    subject: Manifest = field(default_factory=dict)
    children: Mapping[ChildKey, Manifest] = field(default_factory=dict)
    pods: tuple[Manifest, ...] = ()
    # Served names that mean another LLMDeployment, each with that one's namespace and name.
    name_holders: tuple[tuple[str, str], ...] = ()
    # The reason why the plan was not carried out, if it was not.
    refusal: Problem | None = None
    now: datetime = EPOCH

    @property
    def key(self) -> Key:
        return Key.of(self.subject)

    @property
    def generation(self) -> int:
        return int(self.subject["metadata"].get("generation", 0))

    @property
    def reported(self) -> Manifest:
        """The status that was reported last."""
        status: Manifest = self.subject.get("status", {})
        return status

    def workload(self, name: str) -> Manifest:
        """Return the Deployment with the engines, empty if there is none."""
        return self.children.get(workload_key(name), {})
