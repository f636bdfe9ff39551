"""Deletion costs of pods, against a real API server."""

from collections.abc import Sequence
from typing import Any

from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.config import load_kube_config
from llm_operator.control.cluster import Cluster
from llm_operator.control.deletion_costs import DeletionCosts, requests_by_host

from engine_server.contract.api import Key
from engine_server.contract.demand import DemandReport, DeploymentDemand

ANNOTATION = "controller.kubernetes.io/pod-deletion-cost"


def report(name: str, **requests: int) -> DemandReport:
    by_address = {f"http://10.0.0.{host.removeprefix('pod')}:8000": count for host, count in requests.items()}
    demand = DeploymentDemand("default", name, sum(requests.values()), 0, 0.0, (), by_address)
    other = DeploymentDemand("default", "other", 9, 0, 0.0, (), {"http://10.0.0.1:8000": 9})
    return DemandReport((demand, other))


def running(world: Any, name: str, address: str) -> dict[str, Any]:
    """Create a pod that has an address, as the kubelet reports it."""
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}}
    world.apply(pod | {"spec": {"containers": [{"name": "engine", "image": "x"}]}})
    world.set_status("pod", name, {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]})
    found = world.get("pod", name)
    assert isinstance(found, dict)
    return found


async def test_writes_the_requests_of_all_routers_to_pods_and_passes_over_those_that_are_gone(
    world: Any, name: str
) -> None:
    prefix = name[:30]
    pods = [running(world, f"{prefix}-{number}", f"10.0.0.{number}") for number in (1, 2, 3)]
    world.kubectl("delete", "pod", f"{prefix}-2", "--force", "--grace-period=0")

    async def ask_routers() -> Sequence[DemandReport]:
        return report("m", pod1=2, pod2=1), report("m", pod1=3)

    configuration = Configuration()
    account = world.service_account("default")
    await load_kube_config(str(account), client_configuration=configuration)
    async with ApiClient(configuration) as api:
        await DeletionCosts(Cluster(api), ask_routers).write(Key("default", "m"), pods)

    costs = [
        world.get("pod", f"{prefix}-{number}")["metadata"].get("annotations", {}).get(ANNOTATION)
        for number in (1, 3)
    ]
    assert costs == ["5", None]


def test_an_address_of_ipv6_is_the_pods() -> None:
    demand = DeploymentDemand("default", "m", 4, 0, 0.0, (), {"http://[fd00::1]:8000": 4})

    assert requests_by_host(Key("default", "m"), [DemandReport((demand,))]) == {"fd00::1": 4}
