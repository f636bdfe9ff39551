"""The pods' ServiceAccount. It has no token."""

from engine_server.contract import labels
from llm_operator.api.spec import LLMDeployment
from llm_operator.observed import ChildKey, Manifest, Observed
from llm_operator.plan.ownership import child
from llm_operator.settings import Settings


def key(name: str) -> ChildKey:
    return ChildKey("v1", "ServiceAccount", labels.child_name(name))


def plan(deployment: LLMDeployment, observed: Observed, settings: Settings) -> Manifest:
    return child(deployment, key(deployment.name), settings, automountServiceAccountToken=False)
