"""The Service in front of the engines. Its EndpointSlices inherit our label, by which the router finds them."""

from collections.abc import Iterator

from engine_server.contract.cluster import labels
from llm_operator.api.spec import LLMDeployment
from llm_operator.observed import ChildKey, Manifest, Observed
from llm_operator.plan.ownership import child
from llm_operator.settings import Settings


def key(name: str) -> ChildKey:
    return ChildKey("v1", "Service", labels.child_name(name))


def plan(deployment: LLMDeployment, observed: Observed, settings: Settings) -> Iterator[Manifest]:
    port = {
        "name": labels.HTTP_PORT_NAME,
        "port": labels.ENGINE_PORT,
        "targetPort": labels.HTTP_PORT_NAME,
        "protocol": "TCP",
    }
    spec = {"type": "ClusterIP", "selector": labels.selector(deployment.name), "ports": [port]}
    yield child(deployment, key(deployment.name), settings, spec=spec)
