"""What the cluster says, as the plan reads it."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

Manifest = dict[str, Any]
EPOCH = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True, slots=True)
class Observed:
    """One LLMDeployment's surroundings at one moment; empty where there are none, or no cluster."""

    workload: Manifest | None = None  # its Deployment
    pods: tuple[Manifest, ...] = ()
    conditions: tuple[Manifest, ...] = ()  # those it reported last
    name_holders: tuple[tuple[str, str], ...] = ()  # served names that older ones hold, and who
    address: str = ""  # how requests name it where a name is held: namespace/name
    now: datetime = EPOCH
