"""The chart over a release of 0.2.0, which has keys off, and back."""

import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from api_server import ApiServer
from chart_manifests import SET_IMAGE, YAML_LOADER, arguments
from kubernetes_client import Client
from waiting import until

Helm = Callable[..., subprocess.CompletedProcess[str]]

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "fairlead"
CHART_OF_0_2_0 = ROOT / "tests/compat/0.2.0/fairlead-0.2.0.tgz"
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


@pytest.mark.parametrize("switch", ["podMonitors", "networkPolicies", "prometheusRules", "dashboards"])
def test_reused_values_of_0_2_0_render_and_leave_keys_off(helm: Helm, tmp_path: Path, switch: str) -> None:
    chart = shutil.copytree(CHART, tmp_path / "fairlead")
    # As `helm upgrade --reuse-values` does: the defaults of the last release count, not those of the chart.
    with tarfile.open(CHART_OF_0_2_0) as archive:
        defaults = archive.extractfile("fairlead/values.yaml")
        assert defaults is not None
        (chart / "values.yaml").write_bytes(defaults.read())

    rendered = helm("template", "fairlead", chart, f"--set={switch}.enabled=true")

    assert rendered.returncode == 0, rendered.stderr
    manifests = [one for one in yaml.load_all(rendered.stdout, YAML_LOADER) if one]
    assert ROUTER_KEY not in arguments(manifests, "operator")
    assert ENGINE_KEY not in arguments(manifests, "router")


@pytest.mark.parametrize(
    ("flags", "has_keys"),
    [([], True), (["--reset-then-reuse-values"], True), (["--reuse-values"], False)],
    ids=["defaults", "reset then reused", "reused"],
)
def test_a_release_of_0_2_0_is_upgraded_and_rolled_back(
    api_server: ApiServer, helm: Helm, flags: list[str], has_keys: bool
) -> None:
    place = ["--namespace=fairlead-system", f"--kubeconfig={api_server.kubeconfig}"]
    client = Client(api_server.kubeconfig, "fairlead-system")
    client.create_namespace("fairlead-system")

    def flags_of(component: str) -> list[str]:
        pod = client.get("deployment", f"fairlead-{component}")["spec"]["template"]["spec"]
        return list(pod["containers"][0]["args"])

    def run(*arguments: str | Path) -> None:
        done = helm(*arguments, *place)
        assert done.returncode == 0, done.stderr

    # Other tests of this API server may have left the CRD.
    run(
        *("install", "fairlead", CHART_OF_0_2_0, "--take-ownership", "--force-conflicts"),
        *(SET_IMAGE, "--set=router.replicas=3"),
    )
    try:
        before = {component: flags_of(component) for component in ("operator", "router")}
        root_key = {"data": {"keys": "cm9vdA=="}}
        # As the operator does.
        client.patch("secret", "fairlead-admin-key", root_key)

        run("upgrade", "fairlead", CHART, SET_IMAGE, *flags)

        assert (ROUTER_KEY in flags_of("operator")) is has_keys
        assert (ENGINE_KEY in flags_of("router")) is has_keys
        assert (client.find("secret", "fairlead-router-key") is not None) is has_keys
        assert client.get("secret", "fairlead-admin-key")["data"] == root_key["data"]

        run("rollback", "fairlead", "1")

        assert {component: flags_of(component) for component in ("operator", "router")} == before
        assert client.get("secret", "fairlead-admin-key")["data"] == root_key["data"]
        assert client.find("secret", "fairlead-router-key") is None
    finally:
        run("uninstall", "fairlead")


def cluster_wide(client: Client) -> set[str]:
    """Return the names of the cluster-wide objects of releases named fairlead."""
    kinds = (
        "clusterrole",
        "clusterrolebinding",
        "validatingadmissionpolicy",
        "validatingadmissionpolicybinding",
    )
    return {name for kind in kinds for name in client.names(kind) if name.startswith("fairlead-")}


def test_an_upgrade_renames_roles_with_their_bindings_and_keeps_the_lease(
    api_server: ApiServer, helm: Helm
) -> None:
    place = ["--namespace=fairlead-system", f"--kubeconfig={api_server.kubeconfig}"]
    client = Client(api_server.kubeconfig, "fairlead-system")
    client.create_namespace("fairlead-system")

    def run(*arguments: str | Path) -> None:
        done = helm(*arguments, *place)
        assert done.returncode == 0, done.stderr

    def rights() -> list[bool]:
        return [
            may(client, "fairlead-system:fairlead-operator", "patch", "deployments.apps"),
            may(client, "fairlead-system:fairlead-router", "watch", "endpointslices.discovery.k8s.io"),
        ]

    # Other tests of this API server may have left the CRD.
    run("install", "fairlead", CHART_OF_0_2_0, "--take-ownership", "--force-conflicts")
    try:
        before = cluster_wide(client)
        lease = client.get("lease", "fairlead-operator")["metadata"]["uid"]

        run("upgrade", "fairlead", CHART, SET_IMAGE)

        after = cluster_wide(client)
        assert after
        assert all(name.endswith("-fairlead-system") for name in after)
        until(lambda: all(rights()))
        assert client.get("lease", "fairlead-operator")["metadata"]["uid"] == lease

        run("rollback", "fairlead", "1")

        assert cluster_wide(client) == before
        until(lambda: all(rights()))
        assert client.get("lease", "fairlead-operator")["metadata"]["uid"] == lease
    finally:
        run("uninstall", "fairlead")


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
