"""The autoscaler's decisions as the status of each LLMDeployment has them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from engine_server.contract.cluster.api import Key
from llm_operator.api.status import Scaling
from llm_operator.observed import Manifest

# A new reason for the same number is reported after so long. Reasons may change with each decision.
REASON_SECONDS = 10.0


def reported_scaling(manifest: Manifest) -> Scaling | None:
    """Return the decision in the status of an LLMDeployment, None without a valid one."""
    try:
        return msgspec.convert(manifest.get("status", {}).get("autoscaling"), Scaling | None)
    except msgspec.ValidationError:
        return None


class Told(NamedTuple):
    """A decision, and the event loop's time at which it was reported."""

    scaling: Scaling
    at: float


@dataclass(slots=True)
class ScalingReports:
    """Keeps the decision that each status has, and wakes an LLMDeployment for which another one is to be reported."""

    wake: Callable[[Key], None]
    told: dict[Key, Told] = field(default_factory=dict)

    def put(self, key: Key, scaling: Scaling, now: float) -> None:
        """Report a decision if its number is new, or if its reason is and the last report is not."""
        last = self.told.get(key)
        if last is not None and last.scaling == scaling:
            return
        if last is not None and last.scaling.wanted == scaling.wanted and now < last.at + REASON_SECONDS:
            return
        self.told[key] = Told(scaling, now)
        self.wake(key)

    def get(self, key: Key) -> Scaling | None:
        """Return the decision that was reported; None before the first."""
        last = self.told.get(key)
        return last.scaling if last else None

    def remove(self, key: Key) -> None:
        """Forget an LLMDeployment that is scaled no more."""
        self.told.pop(key, None)
