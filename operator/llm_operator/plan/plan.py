"""The plan: the children that an LLMDeployment should have, from its spec and the cluster's state. No I/O."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from llm_operator.api.model_cache import ModelCache
from llm_operator.api.spec import LLMDeployment
from llm_operator.observed import ChildKey, Manifest, Observed
from llm_operator.plan.children import budget, cache, network_policy, service, service_account
from llm_operator.plan.children import deployment as workload
from llm_operator.plan.mounted import mounted
from llm_operator.plan.ownership import may_delete, may_release
from llm_operator.plan.pod import adapters, keys
from llm_operator.settings import Settings


class Planner(Protocol):
    """A module that plans the children of one kind."""

    def plan(self, deployment: LLMDeployment, observed: Observed, settings: Settings) -> Iterable[Manifest]:
        """Return the children in full. Raises SpecError for a spec that cannot be carried out."""
        ...


# In the order in which children are applied: pods need their service account, keys, adapters and model.
PLANNERS: tuple[Planner, ...] = (
    service_account,
    keys,
    adapters,
    cache,
    service,
    network_policy,
    budget,
    workload,
)


@dataclass(frozen=True, slots=True)
class Plan:
    """The changes that lead to the wanted state."""

    # Children in full, in the order in which they are applied.
    apply: Mapping[ChildKey, Manifest]
    # Children of ours that are not wanted any more.
    delete: tuple[ChildKey, ...] = ()
    # Children that others may share, and of which this one is an owner no more.
    release: tuple[ChildKey, ...] = ()
    # The cache into which the model is downloaded at present.
    fetches: ModelCache | None = None
    # Claims of the user's whose state the plan depends on.
    claims: frozenset[str] = frozenset()
    # The time in seconds after which to plan again without an event, if ever.
    requeue_after: float | None = None


def plan_refused(observed: Observed, settings: Settings) -> Plan:
    """Return the plan for a spec that cannot be carried out: the Deployment alone, if its engines can't be called."""
    return Plan({ChildKey.of(child): child for child in workload.plan_refused(observed, settings)})


def plan(deployment: LLMDeployment, observed: Observed, settings: Settings) -> Plan:
    """Return the plan for a spec. Raises SpecError for a spec that cannot be carried out."""
    wanted = (child for planner in PLANNERS for child in planner.plan(deployment, observed, settings))
    apply = {ChildKey.of(child): child for child in wanted}
    kept = apply.keys() | mounted(deployment, observed, apply)
    others = {key: existing for key, existing in observed.children.items() if key not in kept}
    fetches = cache.fetched_into(deployment, observed)
    return Plan(
        apply,
        delete=tuple(key for key, existing in others.items() if may_delete(existing, deployment)),
        release=tuple(key for key, existing in others.items() if may_release(existing, deployment)),
        fetches=fetches,
        claims=frozenset((fetches.claim,)) if fetches and not fetches.is_created else frozenset(),
        requeue_after=cache.poll_after(fetches, observed) if fetches else None,
    )
