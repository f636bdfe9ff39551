"""The NetworkPolicy of the engines."""

from dataclasses import replace
from typing import Any

from llm_operator.settings import Settings

SETTINGS = Settings(engine_image="engine:1")
PEERS = (
    {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "fairlead-system"}}},
    {"ipBlock": {"cidr": "10.0.0.0/8"}},
)


def test_only_the_configured_peers_reach_the_pods(planned: Any, manifest: Any) -> None:
    goal = planned(manifest(), settings=replace(SETTINGS, network_peers=PEERS))

    policy = goal.child("NetworkPolicy")["spec"]
    assert policy["ingress"] == [{"from": [*PEERS]}]
    assert policy["policyTypes"] == ["Ingress"]
    selected = policy["podSelector"]["matchLabels"]
    assert selected == goal.child("Deployment")["spec"]["selector"]["matchLabels"]


def test_there_is_no_policy_without_peers(planned: Any, manifest: Any) -> None:
    kinds = {key.kind for key in planned(manifest()).goal.apply}
    assert "NetworkPolicy" not in kinds


def test_peers_change_no_pod(planned: Any, manifest: Any) -> None:
    restricted = planned(manifest(), settings=replace(SETTINGS, network_peers=PEERS))
    assert restricted.template == planned(manifest()).template
