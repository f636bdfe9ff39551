"""The NetworkPolicy of the engines: only the configured peers, such as router and operator, reach them."""

from collections.abc import Iterator

from engine_server.contract import labels
from llm_operator.api.spec import LLMDeployment
from llm_operator.observed import ChildKey, Manifest, Observed
from llm_operator.plan.ownership import child
from llm_operator.settings import Settings


def key(name: str) -> ChildKey:
    return ChildKey("networking.k8s.io/v1", "NetworkPolicy", labels.child_name(name))


def plan(deployment: LLMDeployment, observed: Observed, settings: Settings) -> Iterator[Manifest]:
    # A rule without peers would admit everybody.
    if settings.network_peers:
        spec = {
            "podSelector": {"matchLabels": labels.selector(deployment.name)},
            "policyTypes": ["Ingress"],
            "ingress": [{"from": list(settings.network_peers)}],
        }
        yield child(deployment, key(deployment.name), settings, spec=spec)
