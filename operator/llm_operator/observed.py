"""What the cluster says, as the plan reads it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from llm_operator.status.problems import Problem

Manifest = dict[str, Any]
EPOCH = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True, slots=True)
class Observed:
    """One LLMDeployment's surroundings at one moment; empty where there are none, or no cluster."""

    children: Mapping[str, Manifest] = field(default_factory=dict)  # by kind
    pods: tuple[Manifest, ...] = ()
    conditions: tuple[Manifest, ...] = ()  # those it reported last
    name_holders: tuple[tuple[str, str], ...] = ()  # served names that older ones hold, and who
    address: str = ""  # how requests name it where a name is held: namespace/name
    refusal: Problem | None = None  # why the plan's children could not be applied
    now: datetime = EPOCH

    @property
    def workload(self) -> Manifest:
        return self.children.get("Deployment", {})
