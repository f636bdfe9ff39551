"""The chart's objects as a real API server sees them."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chart_manifests import EVERY_VALUE, Manifest
from waiting import until

Render = Callable[..., list[Manifest]]
Helm = Callable[..., subprocess.CompletedProcess[str]]

ROOT = Path(__file__).parents[2]
# Definitions of PodMonitor, PrometheusRule and HTTPRoute.
CRDS = Path(os.environ.get("FOREIGN_CRDS", ROOT.parent / "shared" / "cluster" / "crds"))
LAST_RELEASE = ROOT / "tests" / "e2e" / "fairlead-0.1.0.tgz"


@pytest.fixture(scope="module")
def foreign_kinds(api_server: Any) -> None:
    if not CRDS.is_dir():
        pytest.skip(f"needs the CRDs of PodMonitor, PrometheusRule and HTTPRoute: FOREIGN_CRDS; no {CRDS}")
    files = [f"--filename={path}" for path in sorted(CRDS.glob("*.yaml"))]
    applied = api_server.kubectl("apply", "--server-side", *files)
    assert applied.returncode == 0, applied.stderr
    # It fails as long as a definition has no conditions at all.
    wait = ["wait", "--for=condition=Established", "crd", "--all"]
    until(lambda: api_server.kubectl(*wait).returncode == 0, "established CRDs")


@pytest.fixture
def namespaces(api_server: Any) -> None:
    for name in ("fairlead-system", "team-a", "team-b"):
        manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        assert api_server.kubectl("apply", "-f", "-", stdin=manifest).returncode == 0


@pytest.mark.usefixtures("foreign_kinds", "namespaces")
@pytest.mark.parametrize("values", [{}, EVERY_VALUE], ids=["defaults", "every value"])
def test_every_object_is_accepted_without_unknown_fields(
    api_server: Any, render: Render, values: dict[str, Any]
) -> None:
    listed = list_of(render(tests=True, **values))
    flags = ["--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict"]
    done = api_server.kubectl("apply", *flags, "-f", "-", stdin=listed)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    assert len(done.stdout.splitlines()) == len(listed["items"])


@pytest.mark.usefixtures("namespaces")
def test_an_upgrade_from_the_last_release_is_accepted(api_server: Any, helm: Helm) -> None:
    release = ["--namespace=fairlead-system", f"--kubeconfig={api_server.kubeconfig}"]
    # Other tests of this API server may have left the CRD.
    installed = helm("install", "fairlead", LAST_RELEASE, "--take-ownership", "--force-conflicts", *release)
    assert installed.returncode == 0, installed.stderr

    try:
        upgraded = helm(
            "upgrade", "fairlead", ROOT / "charts/fairlead", "--reset-then-reuse-values", *release
        )

        assert upgraded.returncode == 0, upgraded.stderr
        rendered = api_server.kubectl(
            "get", "deployment", "fairlead-operator", "-n", "fairlead-system", "-o", "yaml"
        )
        assert "fairlead:0.2.0" in rendered.stdout
    finally:
        helm("uninstall", "fairlead", *release)
    left = api_server.kubectl(
        "get", "deploy,sa,lease,role,rolebinding,svc,pdb", "-n", "fairlead-system", "-o", "name"
    )
    assert "fairlead" not in left.stdout.replace("fairlead-system", "")


@pytest.mark.usefixtures("namespaces")
def test_root_keys_outlast_an_upgrade_and_every_way_to_apply_the_chart(
    api_server: Any, helm: Helm, render: Render
) -> None:
    release = ["--namespace=fairlead-system", f"--kubeconfig={api_server.kubeconfig}"]
    values = ["--set=keys.enabled=true", "--set=crd.install=false"]
    chart = ROOT / "charts/fairlead"
    secret = ("secret", "fairlead-router-key", "--namespace=fairlead-system")
    installed = helm("install", "fairlead", chart, "--take-ownership", "--force-conflicts", *values, *release)
    assert installed.returncode == 0, installed.stderr
    try:
        # As the operator does.
        patched = api_server.kubectl(
            "patch", *secret, "--type=merge", "--patch", '{"data": {"keys": "cm9vdA=="}}'
        )
        assert patched.returncode == 0, patched.stderr

        upgraded = helm("upgrade", "fairlead", chart, *values, "--set=router.replicas=3", *release)
        assert upgraded.returncode == 0, upgraded.stderr
        rendered = [one for one in render(keys={"enabled": True}) if one["kind"] == "Secret"]
        for flags in ([], ["--server-side", "--force-conflicts"]):
            applied = api_server.kubectl("apply", *flags, "-f", "-", stdin=list_of(rendered))
            assert applied.returncode == 0, applied.stderr
            kept = api_server.kubectl("get", *secret, "--output=jsonpath={.data}")
            assert kept.stdout == '{"keys":"cm9vdA=="}'
    finally:
        helm("uninstall", "fairlead", *release)
    assert "NotFound" in api_server.kubectl("get", *secret).stderr


@pytest.mark.usefixtures("namespaces")
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
    api_server: Any, render: Render, verb: str, resource: str, allowed: bool
) -> None:
    kinds = ("CustomResourceDefinition", "ServiceAccount", "ClusterRole", "ClusterRoleBinding")
    wanted = [one for one in render() if one["kind"] in kinds]
    applied = api_server.kubectl(
        "apply", "--server-side", "--force-conflicts", "-f", "-", stdin=list_of(wanted)
    )
    assert applied.returncode == 0, applied.stderr
    account = "--as=system:serviceaccount:fairlead-system:fairlead-router"
    kind, _, part = resource.partition("/")
    words = [verb, kind, *([f"--subresource={part}"] if part else [])]
    answer = api_server.kubectl("auth", "can-i", *words, "-n", "team-a", account)
    assert answer.stdout.strip() == ("yes" if allowed else "no"), answer.stderr


def list_of(items: list[Manifest]) -> Manifest:
    return {"apiVersion": "v1", "kind": "List", "items": items}
