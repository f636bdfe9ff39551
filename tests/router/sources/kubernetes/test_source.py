"""Deployments from a real API server."""

from pathlib import Path
from uuid import uuid4

import pytest
from kubernetes_objects import endpoint, llmd, slice_of

from engine_server.router.routing.policies.round_robin import RoundRobin
from engine_server.router.sources.kubernetes.access import from_kubeconfig

CRD = Path(__file__).parents[4] / "charts" / "fairlead" / "files" / "llmdeployment-crd.yaml"


@pytest.fixture
def cluster(api_server):
    """Install the CRD and create two namespaces; (apply, delete, names of the namespaces)."""

    def kubectl(*arguments: str, stdin=None) -> None:
        result = api_server.kubectl(*arguments, stdin=stdin)
        assert result.returncode == 0, result.stderr

    kubectl("apply", "-f", str(CRD))
    kubectl("wait", "--for=condition=Established", "crd/llmdeployments.fairlead.dev")
    namespaces = [f"{color}-{uuid4().hex[:8]}" for color in ("red", "blue")]
    for namespace in namespaces:
        kubectl("create", "namespace", namespace)

    def apply(namespace: str, *objects: dict) -> None:
        kubectl(
            "apply",
            "-n",
            namespace,
            "-f",
            "-",
            stdin={"apiVersion": "v1", "kind": "List", "items": [*objects]},
        )

    def delete(namespace: str, kind: str, name: str) -> None:
        kubectl("delete", kind, name, "-n", namespace)

    yield apply, delete, namespaces
    for namespace in namespaces:
        kubectl("delete", "llmdeployments,endpointslices", "--all", "-n", namespace)


async def test_follows_deployments_and_slices_of_a_cluster(api_server, cluster, follow, eventually):
    apply, delete, (red, blue) = cluster
    apply(red, llmd("a", "first", policy="round_robin"))
    apply(red, slice_of("a", "a-1", endpoint("10.0.0.1", ready=True, serving=True, terminating=False)))
    everywhere = await follow(from_kubeconfig(api_server.kubeconfig))
    blue_only = await follow(from_kubeconfig(api_server.kubeconfig), blue)
    assert everywhere.live("first") == everywhere.live(f"{red}/a") == ["http://10.0.0.1:8000"]
    assert isinstance(everywhere.directory.resolve("first").policy, RoundRobin)
    assert blue_only.live("first") is None

    apply(red, slice_of("a", "a-2", endpoint("10.0.0.2")))  # a second slice of the same deployment
    await eventually(lambda: everywhere.live("first") == ["http://10.0.0.1:8000", "http://10.0.0.2:8000"])
    apply(red, slice_of("a", "a-1", endpoint("10.0.0.1", ready=False, serving=True, terminating=True)))
    await eventually(lambda: everywhere.live("first") == ["http://10.0.0.2:8000"])

    delete(red, "endpointslice", "a-2")
    await eventually(lambda: everywhere.live("first") == [])
    apply(red, llmd("a", "second"))
    await eventually(lambda: everywhere.live("first") is None and everywhere.live("second") == [])
    apply(blue, llmd("b", "first"), slice_of("b", "b-1", endpoint("10.0.1.1")))
    await eventually(lambda: everywhere.live("first") == blue_only.live("first") == ["http://10.0.1.1:8000"])
    delete(red, "llmdeployment", "a")
    await eventually(lambda: everywhere.live("second") is None)


async def test_follows_each_of_several_namespaces(api_server, cluster, follow):
    apply, _, namespaces = cluster
    for namespace in namespaces:
        apply(namespace, llmd("a"))
    everywhere = await follow(from_kubeconfig(api_server.kubeconfig), *namespaces)
    assert [everywhere.live(f"{namespace}/a") for namespace in namespaces] == [[], []]
