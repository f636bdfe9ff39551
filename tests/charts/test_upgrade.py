"""The chart over a release of an earlier one, and back; two releases beside each other."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from api_server import ApiServer
from chart_manifests import SET_IMAGE
from kubernetes_client import Client
from waiting import until

from engine_server.contract.base.version import VERSION

Helm = Callable[..., subprocess.CompletedProcess[str]]

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "fairlead"
ROUTER_KEY = "--router-key-secret=fairlead-router-key"
ENGINE_KEY = "--engine-key-file=/etc/fairlead/router-key/keys"


def may(client: Client, account: str, verb: str, resource: str) -> bool:
    """Return True if a component's account may do this in every namespace."""
    plural, _, group = resource.partition(".")
    wanted = {"verb": verb, "resource": plural, "group": group}
    review = client.create(
        {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "metadata": {},
            "spec": {"user": f"system:serviceaccount:{account}", "resourceAttributes": wanted},
        }
    )
    return bool(review["status"]["allowed"])


def test_a_release_is_upgraded_rolled_back_and_removed(
    api_server: ApiServer, helm: Helm, earlier_chart: Path
) -> None:
    place = ["--namespace=fairlead-system", f"--kubeconfig={api_server.kubeconfig}"]
    client = Client(api_server.kubeconfig, "fairlead-system")
    client.create_namespace("fairlead-system")

    def run(*arguments: str | Path) -> None:
        done = helm(*arguments, *place)
        assert done.returncode == 0, done.stderr

    def container(component: str) -> dict[str, Any]:
        pod = client.get("deployment", f"fairlead-{component}")["spec"]["template"]["spec"]
        return dict(pod["containers"][0])

    def flags() -> dict[str, list[str]]:
        return {component: container(component)["args"] for component in ("operator", "router")}

    def root_key() -> dict[str, str]:
        return dict(client.get("secret", "fairlead-admin-key")["data"])

    def hold_lease() -> None:
        """Create the Lease if there is none, and hold it, as the operator does."""
        if client.find("lease", "fairlead-operator") is None:
            kind = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
            client.create({**kind, "metadata": {"name": "fairlead-operator"}})
        client.patch("lease", "fairlead-operator", {"spec": {"holderIdentity": "one"}})

    def have_rights() -> bool:
        return may(client, "fairlead-system:fairlead-operator", "patch", "deployments.apps") and may(
            client, "fairlead-system:fairlead-router", "watch", "endpointslices.discovery.k8s.io"
        )

    # Other tests of this API server may have left the CRD.
    run(
        *("install", "fairlead", earlier_chart, "--take-ownership", "--force-conflicts"),
        *(SET_IMAGE, "--set=keys.enabled=false", "--set=router.replicas=3"),
    )
    try:
        # As the operator does.
        client.patch("secret", "fairlead-admin-key", {"data": {"keys": "cm9vdA=="}})
        hold_lease()
        before, root_key_before = flags(), root_key()

        run("upgrade", "fairlead", CHART, "--reset-then-reuse-values", "--set=keys.enabled=true")

        assert container("operator")["image"].endswith(f"fairlead:{VERSION}")
        assert client.get("deployment", "fairlead-router")["spec"]["replicas"] == 3
        assert ROUTER_KEY in flags()["operator"]
        assert ENGINE_KEY in flags()["router"]
        assert client.find("secret", "fairlead-router-key") is not None
        assert root_key() == root_key_before
        until(have_rights)
        hold_lease()

        run("rollback", "fairlead", "1")

        assert flags() == before
        assert client.find("secret", "fairlead-router-key") is None
        assert root_key() == root_key_before
        until(have_rights)
    finally:
        run("uninstall", "fairlead")
        client.delete_all("lease")
    kinds = ("deployment", "serviceaccount", "role", "rolebinding", "service", "pdb", "secret")
    assert not [name for kind in kinds for name in client.names(kind) if "fairlead" in name]


def test_releases_of_one_name_in_two_namespaces_leave_each_other_alone(
    api_server: ApiServer, helm: Helm
) -> None:
    client = Client(api_server.kubeconfig)
    homes = ("fairlead-one", "fairlead-two")
    places = [[f"--namespace={home}", f"--kubeconfig={api_server.kubeconfig}"] for home in homes]
    try:
        for home, place in zip(homes, places, strict=True):
            client.create_namespace(home)
            installed = helm("install", "fairlead", CHART, SET_IMAGE, "--set=crd.install=false", *place)
            assert installed.returncode == 0, installed.stderr
        removed = helm("uninstall", "fairlead", *places[1])
        assert removed.returncode == 0, removed.stderr

        until(lambda: may(client, "fairlead-one:fairlead-operator", "patch", "deployments.apps"))
        until(lambda: not may(client, "fairlead-two:fairlead-operator", "patch", "deployments.apps"))
    finally:
        for place in places:
            helm("uninstall", "fairlead", "--ignore-not-found", *place)
