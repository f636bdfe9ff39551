"""The NetworkPolicies of an LLMDeployment: only the configured peers, such as router and operator, reach its pods."""

from collections.abc import Iterator

from engine_server.contract.cluster import labels
from llm_operator.api.model_cache import model_cache
from llm_operator.api.spec import LLMDeployment
from llm_operator.observed import ChildKey, Manifest, Observed
from llm_operator.plan.ownership import child
from llm_operator.settings import Settings

ENGINE_PORTS = (labels.ENGINE_PORT, labels.ADMIN_PORT)
# A download reports its progress where the engine would listen.
FETCH_PORTS = (labels.ENGINE_PORT,)


def plan(deployment: LLMDeployment, observed: Observed, settings: Settings) -> Iterator[Manifest]:
    # A rule without peers would admit everybody.
    if not settings.network_peers:
        return
    engines = labels.selector(deployment.name)
    yield policy(deployment, labels.child_name(deployment.name), engines, ENGINE_PORTS, settings)
    if cache := model_cache(deployment.spec.model):
        # Of each that shares the cache; together they admit what one of them does.
        downloads = {labels.MODEL_CACHE_LABEL: cache.name}
        yield policy(deployment, f"{deployment.name}-fetch", downloads, FETCH_PORTS, settings)


def policy(
    deployment: LLMDeployment, name: str, pods: dict[str, str], ports: tuple[int, ...], settings: Settings
) -> Manifest:
    """Return a policy that admits the peers to these ports of the pods with these labels."""
    ingress = {
        "from": list(settings.network_peers),
        "ports": [{"port": port, "protocol": "TCP"} for port in ports],
    }
    spec = {"podSelector": {"matchLabels": pods}, "policyTypes": ["Ingress"], "ingress": [ingress]}
    return child(deployment, ChildKey("networking.k8s.io/v1", "NetworkPolicy", name), settings, spec=spec)
