"""Deletion costs of pods, against a real API server."""

from collections.abc import Sequence
from typing import Any

from llm_operator.control.cluster import Cluster
from llm_operator.control.deletion_costs import DeletionCosts, requests_by_host
from llm_operator.control.reconcile import Reconciler
from llm_operator.kinds import LLMDEPLOYMENTS
from llm_operator.settings import Settings

from engine_server.contract.cluster.api import Key
from engine_server.contract.cluster.demand import DemandReport, DeploymentDemand

ANNOTATION = "controller.kubernetes.io/pod-deletion-cost"


def report(namespace: str, **requests: int) -> DemandReport:
    """Return the requests for the deployment m, by its pods, of a router that has others for another one."""
    by_address = {f"http://10.0.0.{host.removeprefix('pod')}:8000": count for host, count in requests.items()}
    demand = DeploymentDemand(namespace, "m", sum(requests.values()), 0, 0.0, (), by_address)
    other = DeploymentDemand(namespace, "other", 9, 0, 0.0, (), {"http://10.0.0.1:8000": 9})
    return DemandReport((demand, other))


def running(world: Any, name: str, address: str) -> dict[str, Any]:
    """Create a pod that has an address, as the kubelet reports it."""
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}}
    world.apply(pod | {"spec": {"containers": [{"name": "engine", "image": "x"}]}})
    world.set_status("pod", name, {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]})
    return dict(world.get("pod", name))


async def test_writes_the_requests_of_all_routers_to_pods_and_passes_over_those_that_are_gone(
    world: Any, cluster_of_operator: Cluster
) -> None:
    pods = [running(world, f"m-{number}", f"10.0.0.{number}") for number in (1, 2, 3)]
    world.delete("pod", "m-2")

    async def ask_routers() -> Sequence[DemandReport]:
        return report(world.namespace, pod1=2, pod2=1), report(world.namespace, pod1=3)

    await DeletionCosts(cluster_of_operator, ask_routers).write(Key(world.namespace, "m"), pods)

    costs = [
        world.get("pod", name)["metadata"].get("annotations", {}).get(ANNOTATION) for name in ("m-1", "m-3")
    ]
    assert costs == ["5", None]


async def test_routers_are_asked_once_and_before_any_child_is_applied(
    world: Any, manifest: Any, cluster_of_operator: Cluster
) -> None:
    key = Key(world.namespace, "shrinking")
    owners_and_replicas = []

    async def ask_routers() -> Sequence[DemandReport]:
        account = world.get("serviceaccount", "shrinking-engine")["metadata"]["annotations"]
        replicas = world.get("deployment", "shrinking-engine")["spec"]["replicas"]
        owners_and_replicas.append((account["example.org/owner"], replicas))
        return ()

    costs = DeletionCosts(cluster_of_operator, ask_routers)
    reconciler = Reconciler(cluster_of_operator, Settings(engine_image="engine:1"), deletion_costs=costs)

    async def reconcile(replicas: int, owner: str) -> None:
        account = {"annotations": {"example.org/owner": owner}}
        world.apply(manifest("shrinking", replicas=replicas, serviceAccount=account))
        reconciler.store.put(LLMDEPLOYMENTS, world.get("llmd", "shrinking"))
        await reconciler.reconcile(key)

    await reconcile(3, "a")
    await reconcile(2, "b")
    await reconcile(2, "c")
    await reconcile(0, "d")

    assert owners_and_replicas == [("a", 3)]


def test_an_address_of_ipv6_is_the_pods() -> None:
    demand = DeploymentDemand("default", "m", 4, 0, 0.0, (), {"http://[fd00::1]:8000": 4})

    assert requests_by_host(Key("default", "m"), [DemandReport((demand,))]) == {"fd00::1": 4}
