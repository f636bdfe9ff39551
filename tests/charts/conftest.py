import json
import os
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tools
import yaml
from api_server import ApiServer
from chart_manifests import IMAGE, YAML_LOADER
from waiting import until

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "fairlead"
CLUSTER = ROOT.parent / "shared" / "cluster" / "cluster"
# Definitions of kinds of other projects: those of `tools`, and larger ones that an API server works on for seconds.
CRDS = Path(os.environ.get("FOREIGN_CRDS", CLUSTER.parent / "crds"))
# Earlier builds of the chart had the operator's Lease.
LEASE = """\
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {name: fairlead-operator, namespace: {{ .Release.Namespace }}}
"""
# The charts of published releases.
FROZEN = sorted((ROOT / "tests" / "compat").glob("*/fairlead-*.tgz"))
Manifest = dict[str, Any]
Helm = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def helm() -> Helm:
    """Runs helm, from the PATH or from the cluster script beside the repository."""
    program = shutil.which("helm")
    if program is None and CLUSTER.exists():
        exports = subprocess.run([CLUSTER, "assets"], capture_output=True, text=True, check=True).stdout
        folders = [line.partition("=")[2] for line in exports.splitlines() if "KUBEBUILDER_ASSETS=" in line]
        program = shutil.which("helm", path=os.pathsep.join(folders))
    if program is None:
        pytest.skip("the chart's tests need helm, and it is not on the PATH")

    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run([program, *arguments], capture_output=True, text=True)

    return run


@pytest.fixture(
    scope="session",
    params=["this one", "one with a Lease", *FROZEN],
    ids=lambda chart: getattr(chart, "stem", chart),
)
def earlier_chart(
    request: pytest.FixtureRequest, helm: Helm, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A chart from which a release may have been installed: published ones, and this one under another version."""
    if request.param in FROZEN:
        return Path(request.param)
    folder = tmp_path_factory.mktemp("charts")
    chart = shutil.copytree(CHART, folder / "fairlead")
    if request.param == "one with a Lease":
        (chart / "templates" / "lease.yaml").write_text(LEASE)
    packaged = helm("package", chart, "--version=0.0.1", "--app-version=0.0.1", f"--destination={folder}")
    assert packaged.returncode == 0, packaged.stderr
    return folder / "fairlead-0.0.1.tgz"


@pytest.fixture(scope="session")
def render(helm: Helm, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[Manifest]]:
    """The manifests of the chart for some values and an image; with `tests`, also those of `helm test`."""
    file = tmp_path_factory.mktemp("values") / "values.yaml"

    @cache
    def output(values: str, *flags: str) -> str:
        file.write_text(values)
        release = ["fairlead", CHART, "--namespace", "fairlead-system"]
        result = helm("template", *release, "--values", file, *flags)
        assert result.returncode == 0, result.stderr
        return result.stdout

    def rendered(tests: bool = False, **values: Any) -> list[Manifest]:
        image = {"image": {"repository": IMAGE}}
        text = output(json.dumps(image | values), *([] if tests else ["--skip-tests"]))
        return [manifest for manifest in yaml.load_all(text, YAML_LOADER) if manifest]

    return rendered


@pytest.fixture(scope="session")
def foreign_kinds(api_server: ApiServer) -> None:
    if not CRDS.is_dir():
        pytest.skip(f"needs the CRDs of other projects: FOREIGN_CRDS; no {CRDS}")
    definitions = [
        one for name in tools.CRDS for one in yaml.load_all((CRDS / f"{name}.yaml").read_text(), YAML_LOADER)
    ]
    api_server.client.apply(*definitions)
    for definition in definitions:
        spec = definition["spec"]
        served = next(version["name"] for version in spec["versions"] if version["served"])
        kind = (f"{spec['group']}/{served}", spec["names"]["kind"])
        until(lambda kind=kind: api_server.client.serves(*kind))
