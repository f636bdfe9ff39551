"""The plain manifests, and the overlay of docs/operations.md that gives them an image."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from api_server import find_assets
from chart_manifests import YAML_LOADER, Manifest, arguments, pods
from llm_operator import flags

from engine_server.contract.base.version import VERSION

ROOT = Path(__file__).parents[2]
OVERLAY = re.compile(r"^```yaml\n(resources: \[../fairlead/manifests\]\n.*?)^```", re.MULTILINE | re.DOTALL)


def build(folder: Path) -> list[Manifest]:
    kubectl = find_assets() / "kubectl"
    done = subprocess.run([kubectl, "kustomize", folder], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return list(yaml.load_all(done.stdout, YAML_LOADER))


def images(manifests: list[Manifest]) -> set[str]:
    return {container["image"] for pod in pods(manifests) for container in pod["containers"]}


def test_the_operator_refuses_the_manifests_without_an_overlay(capsys: pytest.CaptureFixture[str]) -> None:
    manifests = build(ROOT / "manifests")
    assert images(manifests) == {f"fairlead:{flags.PLACEHOLDER_TAG}"}
    command, *words = arguments(manifests, "operator")

    with pytest.raises(SystemExit):
        flags.parse(words)

    assert command == "operator"
    assert "placeholder of manifests/fairlead.yaml" in capsys.readouterr().err


def test_the_documented_overlay_sets_the_image_of_pods_and_of_engines(tmp_path: Path) -> None:
    found = OVERLAY.search((ROOT / "docs/operations.md").read_text())
    assert found
    shutil.copytree(ROOT / "manifests", tmp_path / "fairlead" / "manifests")
    (tmp_path / "overlay").mkdir()
    (tmp_path / "overlay" / "kustomization.yaml").write_text(found[1])

    manifests = build(tmp_path / "overlay")

    image = f"registry.example/fairlead:{VERSION}"
    assert images(manifests) == {image}
    _, *words = arguments(manifests, "operator")
    assert flags.parse(words).settings.engine_image == image
