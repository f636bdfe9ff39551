"""The NetworkPolicy of the engines."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

from llm_operator.observed import KeyHashes, Observed
from llm_operator.settings import Settings

from engine_server.contract.cluster.labels import ADMIN_PORT

SETTINGS = Settings(engine_image="engine:1")
PEERS = (
    {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "fairlead-system"}}},
    {"ipBlock": {"cidr": "10.0.0.0/8"}},
)


def test_only_the_configured_peers_reach_the_pods(planned: Any, manifest: Any) -> None:
    goal = planned(manifest(), settings=replace(SETTINGS, network_peers=PEERS))

    policy = goal.child("NetworkPolicy")["spec"]
    ports = [{"port": port, "protocol": "TCP"} for port in (8000, 8001)]
    assert policy["ingress"] == [{"from": [*PEERS], "ports": ports}]
    assert policy["policyTypes"] == ["Ingress"]
    selected = policy["podSelector"]["matchLabels"]
    assert selected == goal.child("Deployment")["spec"]["selector"]["matchLabels"]


def test_ports_of_the_policy_are_those_on_which_the_engine_listens(planned: Any, manifest: Any) -> None:
    settings = replace(SETTINGS, network_peers=PEERS)
    given = manifest(adapters=[{"name": "a", "uri": "a/b"}])
    hashes = KeyHashes(admin=("h",))
    goal = planned(given, Observed(subject=given, key_hashes=hashes), settings)

    arguments = goal.engine["args"]
    listening = {
        int(argument) for flag, argument in pairwise(arguments) if flag in ("--port", "--admin-port")
    }
    listening |= {port["containerPort"] for port in goal.engine["ports"]}
    admitted = {
        port["port"] for rule in goal.child("NetworkPolicy")["spec"]["ingress"] for port in rule["ports"]
    }
    assert admitted == listening | {ADMIN_PORT}


def test_downloads_are_reached_by_the_peers_alone(planned: Any, manifest: Any) -> None:
    settings = replace(SETTINGS, network_peers=PEERS)
    goal = planned(manifest(model={"uri": "a/b", "cache": {"size": "1Gi"}}), settings=settings)

    policies = {
        key.name: child["spec"] for key, child in goal.goal.apply.items() if key.kind == "NetworkPolicy"
    }
    (job,) = (child for key, child in goal.goal.apply.items() if key.kind == "Job")
    pod = job["spec"]["template"]
    policy = policies["smollm2-fetch"]
    assert policy["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    (container,) = pod["spec"]["containers"]
    assert [port["port"] for port in policy["ingress"][0]["ports"]] == [
        port["containerPort"] for port in container["ports"]
    ]
    assert policy["ingress"][0]["from"] == [*PEERS]


def test_there_is_no_policy_without_peers(planned: Any, manifest: Any) -> None:
    kinds = {key.kind for key in planned(manifest()).goal.apply}
    assert "NetworkPolicy" not in kinds


def test_peers_change_no_pod(planned: Any, manifest: Any) -> None:
    restricted = planned(manifest(), settings=replace(SETTINGS, network_peers=PEERS))
    assert restricted.template == planned(manifest()).template
