"""The decision about one LLMDeployment: its plan, or the reason why there is none. No I/O."""

from dataclasses import dataclass

from engine_server.contract.cluster.reasons import Reason
from engine_server.contract.cluster.served_names import is_foreign
from llm_operator.api.schema import SpecError
from llm_operator.api.spec import LLMDeployment, LLMDeploymentSpec, parse
from llm_operator.observed import Observed, Problem
from llm_operator.plan.ownership import is_of_namesake, may_apply
from llm_operator.plan.plan import Plan, plan, plan_refused
from llm_operator.settings import Settings

NOTHING = Plan(apply={})


@dataclass(frozen=True, slots=True)
class Decision:
    """A plan to carry out. If it was refused, what ran before goes on."""

    # The spec in its typed form; None if it is invalid.
    spec: LLMDeploymentSpec | None
    plan: Plan
    refusal: Problem | None = None

    @property
    def may_succeed_later(self) -> bool:
        """False if only a change of the spec can help."""
        return self.spec is not None


def decide(observed: Observed, settings: Settings) -> Decision:
    """Parse and plan the observed LLMDeployment."""
    try:
        deployment = parse(observed.subject)
        check_served_names(deployment, settings)
        goal = plan(deployment, observed, settings)
    except SpecError as error:
        goal = NOTHING if observed.is_paused else plan_refused(observed, settings)
        return Decision(None, goal, Problem(Reason.INVALID_SPEC, str(error)))
    if observed.is_paused:
        return Decision(deployment.spec, NOTHING)
    if refusal := obstacle(goal, deployment, observed):
        return Decision(deployment.spec, plan_refused(observed, settings), refusal)
    return Decision(deployment.spec, goal)


def check_served_names(deployment: LLMDeployment, settings: Settings) -> None:
    """Raise SpecError for a served name that may be another object's NAMESPACE/NAME."""
    organizations = settings.served_name_organizations
    for index, name in enumerate(deployment.spec.model.served_names):
        if is_foreign(name, deployment.key, organizations):
            problem = (
                f"{name} could be the NAMESPACE/NAME of another object, without a capital or a dot in it"
            )
            listed = ", ".join(sorted(organizations)) or "none"
            remedy = f"the administrator lists what else may stand before the slash: {listed}"
            raise SpecError(f"spec.model.servedNames[{index}]", f"{problem}; {remedy}")


def obstacle(goal: Plan, deployment: LLMDeployment, observed: Observed) -> Problem | None:
    """Return the reason why a plan cannot be applied; None if there is none."""
    if deployment.has_adapters and not observed.key_hashes.admin:
        problem = "spec.adapters: the operator has no admin key, with which it tells engines their adapters"
        return Problem(Reason.NO_ADMIN_KEY, f"{problem}; see its flag --admin-key-secret, and its log")
    others = {
        key: existing
        for key in goal.apply
        if (existing := observed.children.get(key)) and not may_apply(existing, deployment)
    }
    for key, existing in others.items():
        if not is_of_namesake(existing, deployment):
            return Problem(
                Reason.CHILD_EXISTS, f"a {key.kind} named {key.name} is there already and is not ours"
            )
    if others:
        key = next(iter(others))
        return Problem(
            Reason.CHILD_TERMINATING,
            f"the {key.kind} {key.name} of a deleted LLMDeployment of the same name is still there; "
            "Kubernetes deletes it",
        )
    return None
