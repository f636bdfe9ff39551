"""The chart's objects as a real API server sees them."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from api_server import ApiServer
from chart_manifests import EVERY_VALUE, SET_IMAGE, Manifest
from kubernetes_client import Client
from waiting import until

Render = Callable[..., list[Manifest]]
Helm = Callable[..., subprocess.CompletedProcess[str]]

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def namespaces(api_server: ApiServer) -> None:
    for name in ("fairlead-system", "team-a", "team-b"):
        api_server.client.create_namespace(name)


@pytest.mark.usefixtures("foreign_kinds", "namespaces")
@pytest.mark.parametrize("values", [{}, EVERY_VALUE], ids=["defaults", "every value"])
def test_every_object_is_accepted_without_unknown_fields(
    api_server: ApiServer, render: Render, values: dict[str, Any]
) -> None:
    client = Client(api_server.kubeconfig)
    client.apply(*render(tests=True, **values), dryRun="All")
    assert client.warnings == []


@pytest.mark.more
@pytest.mark.usefixtures("namespaces")
def test_root_keys_outlast_an_upgrade_and_every_way_to_apply_the_chart(
    api_server: ApiServer, helm: Helm, render: Render
) -> None:
    release = ["--namespace=fairlead-system", f"--kubeconfig={api_server.kubeconfig}"]
    values = [SET_IMAGE, "--set=keys.enabled=true", "--set=crd.install=false"]
    chart = ROOT / "charts/fairlead"
    client, secret = Client(api_server.kubeconfig, "fairlead-system"), ("secret", "fairlead-router-key")
    installed = helm("install", "fairlead", chart, "--take-ownership", "--force-conflicts", *values, *release)
    assert installed.returncode == 0, installed.stderr
    try:
        # As the operator does.
        client.patch(*secret, {"data": {"keys": "cm9vdA=="}})

        upgraded = helm("upgrade", "fairlead", chart, *values, "--set=router.replicas=3", *release)
        assert upgraded.returncode == 0, upgraded.stderr
        rendered = [one for one in render(keys={"enabled": True}) if one["kind"] == "Secret"]
        for flags in ([], ["--server-side", "--force-conflicts"]):
            applied = api_server.kubectl("apply", *flags, "-f", "-", stdin=list_of(rendered))
            assert applied.returncode == 0, applied.stderr
            assert client.get(*secret)["data"] == {"keys": "cm9vdA=="}
    finally:
        helm("uninstall", "fairlead", *release)
    assert client.find(*secret) is None


def router_may(api_server: ApiServer, verb: str, resource: str) -> bool:
    """Return True if the router's account has a right in a namespace."""
    kind, _, subresource = resource.partition("/")
    plural, _, group = kind.partition(".")
    wanted = {
        "verb": verb,
        "resource": plural,
        "group": group,
        "subresource": subresource,
        "namespace": "team-a",
    }
    account = "system:serviceaccount:fairlead-system:fairlead-router"
    review = api_server.client.create(
        {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "metadata": {},
            "spec": {"user": account, "resourceAttributes": wanted},
        }
    )
    allowed: bool = review["status"]["allowed"]
    return allowed


@pytest.fixture(scope="module")
def router_rights(api_server: ApiServer, render: Render, namespaces: None) -> Iterator[None]:
    """Give the router its rights, and nothing else of the chart; take them back at the end."""
    kinds = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding")
    objects = [one for one in render() if one["kind"] in kinds]
    api_server.client.apply(*objects)
    # The API server's authorizer learns of them later.
    until(lambda: router_may(api_server, "watch", "llmdeployments.fairlead.dev"))
    yield
    for one in objects:
        api_server.client.delete(one["kind"].lower(), one["metadata"]["name"], "fairlead-system")


@pytest.mark.usefixtures("router_rights")
@pytest.mark.parametrize(
    ("verb", "resource", "allowed"),
    [
        ("watch", "llmdeployments.fairlead.dev", True),
        ("patch", "llmdeployments.fairlead.dev/scale", True),
        ("watch", "endpointslices.discovery.k8s.io", True),
        ("patch", "llmdeployments.fairlead.dev", False),
        ("get", "secrets", False),
        ("list", "pods", False),
    ],
)
def test_router_has_only_the_rights_that_it_uses(
    api_server: ApiServer, verb: str, resource: str, allowed: bool
) -> None:
    assert router_may(api_server, verb, resource) is allowed


def list_of(items: list[Manifest]) -> Manifest:
    return {"apiVersion": "v1", "kind": "List", "items": items}
