"""The plan: the children that an LLMDeployment should have, from its spec and the cluster's state. No I/O."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from llm_operator.api.spec import LLMDeployment
from llm_operator.observed import ChildKey, Manifest, Observed
from llm_operator.plan import deployment as workload
from llm_operator.plan import service, service_account
from llm_operator.plan.ownership import may_delete
from llm_operator.settings import Settings


class Planner(Protocol):
    """A module that plans one child."""

    def key(self, name: str) -> ChildKey:
        """Return the key of the child of the LLMDeployment `name`."""
        ...

    def plan(self, deployment: LLMDeployment, observed: Observed, settings: Settings) -> Manifest:
        """Return the child. Raises SpecError for a spec that cannot be carried out."""
        ...


# In the order in which children are applied: pods need their service account.
PLANNERS: tuple[Planner, ...] = (service_account, service, workload)


@dataclass(frozen=True, slots=True)
class Plan:
    """The changes that lead to the wanted state."""

    # Children in full, in the order in which they are applied.
    apply: Mapping[ChildKey, Manifest]
    # Children of ours that are not wanted any more.
    delete: tuple[ChildKey, ...] = ()
    # The time in seconds after which to plan again without an event, if ever.
    requeue_after: float | None = None


def child_keys(name: str) -> tuple[ChildKey, ...]:
    """Return the keys of all children that a plan for the LLMDeployment `name` may have."""
    return tuple(planner.key(name) for planner in PLANNERS)


def plan(deployment: LLMDeployment, observed: Observed, settings: Settings) -> Plan:
    """Return the plan for a spec. Raises SpecError for a spec that cannot be carried out."""
    wanted = [planner.plan(deployment, observed, settings) for planner in PLANNERS]
    apply = {ChildKey.of(child): child for child in wanted}
    unwanted = (
        key for key, child in observed.children.items() if key not in apply and may_delete(child, deployment)
    )
    return Plan(apply, tuple(unwanted))
