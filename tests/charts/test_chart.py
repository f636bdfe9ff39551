"""The chart and the plain manifests that are rendered from it."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from llm_operator import crd

Manifest = dict[str, Any]
Render = Callable[..., list[Manifest]]
Helm = Callable[..., subprocess.CompletedProcess[str]]

DIGEST = "sha256:" + "0f" * 32
EVERY_VALUE: dict[str, Any] = {
    "image": {"repository": "registry.example/fairlead", "digest": DIGEST, "pullPolicy": "Always"},
    "imagePullSecrets": [{"name": "registry"}],
    "watchNamespaces": ["team-a", "team-b"],
    "engine": {"image": "registry.example/engine:2"},
    "operator": {
        "args": ["--verbose"],
        "podAnnotations": {"a": "b"},
        "podLabels": {"team": "ml"},
        "nodeSelector": {"pool": "cpu"},
        "tolerations": [{"key": "pool", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "system-cluster-critical",
        "serviceAccount": {"annotations": {"role": "x"}},
    },
    "router": {
        "replicas": 3,
        "policy": "round_robin",
        "service": {"type": "NodePort", "port": 8080, "nodePort": 30080, "annotations": {"a": "b"}},
        "podDisruptionBudget": {"enabled": False},
        "resources": {"limits": {"cpu": 1}},
    },
}


def find(manifests: list[Manifest], kind: str, name: str) -> Manifest:
    return next(m for m in manifests if m["kind"] == kind and m["metadata"]["name"] == name)


def kinds(manifests: list[Manifest]) -> set[str]:
    return {manifest["kind"] for manifest in manifests}


def names(manifests: list[Manifest], kind: str) -> set[str]:
    return {manifest["metadata"]["name"] for manifest in manifests if manifest["kind"] == kind}


def pods(manifests: list[Manifest]) -> Iterator[Manifest]:
    yield from (m["spec"]["template"]["spec"] for m in manifests if m["kind"] == "Deployment")


def arguments(manifests: list[Manifest], component: str) -> list[str]:
    pod = find(manifests, "Deployment", f"fairlead-{component}")["spec"]["template"]["spec"]
    return list(pod["containers"][0]["args"])


@pytest.fixture(params=[{}, EVERY_VALUE], ids=["defaults", "every value"])
def manifests(request: pytest.FixtureRequest, render: Render) -> list[Manifest]:
    return render(**request.param)


def test_helm_lint_finds_nothing(helm: Helm, root: Path) -> None:
    result = helm("lint", "--strict", root / "charts" / "fairlead")
    assert result.returncode == 0, result.stdout + result.stderr


def test_rbac_lists_verbs_and_kinds_one_by_one(manifests: list[Manifest]) -> None:
    rules = [rule for m in manifests if m["kind"] in ("Role", "ClusterRole") for rule in m["rules"]]
    assert rules
    for rule in rules:
        assert {"apiGroups", "resources", "verbs"} <= set(rule)
        assert not any("*" in word for words in rule.values() for word in words)
        assert not {"secrets", "roles", "clusterroles", "pods/exec"} & set(rule["resources"])
        assert not {"escalate", "bind", "impersonate"} & set(rule["verbs"])


def test_pods_meet_the_restricted_pod_security_standard(manifests: list[Manifest]) -> None:
    for pod in pods(manifests):
        context = pod["securityContext"]
        assert context["runAsNonRoot"] is True
        assert context["runAsUser"] > 0
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert {next(iter(set(volume) - {"name"})) for volume in pod["volumes"]} == {"emptyDir"}
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


def test_selectors_contain_nothing_that_an_upgrade_changes(manifests: list[Manifest]) -> None:
    for manifest in manifests:
        if manifest["kind"] == "Deployment":
            labels = manifest["spec"]["selector"]["matchLabels"]
            assert {key.removeprefix("app.kubernetes.io/") for key in labels} == {
                "name",
                "instance",
                "component",
            }
            assert labels.items() <= manifest["spec"]["template"]["metadata"]["labels"].items()


def test_every_object_has_the_recommended_labels(manifests: list[Manifest]) -> None:
    for manifest in manifests:
        labels = manifest["metadata"]["labels"]
        assert labels["app.kubernetes.io/name"] == "fairlead"
        assert labels["app.kubernetes.io/managed-by"] == "Helm"


def test_crd_matches_the_spec_and_is_kept_on_uninstall(manifests: list[Manifest]) -> None:
    definition = find(manifests, "CustomResourceDefinition", "llmdeployments.fairlead.dev")
    assert definition["spec"] == crd.crd()["spec"]
    assert definition["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_only_the_crd_is_kept(manifests: list[Manifest]) -> None:
    kept = [m["kind"] for m in manifests if "helm.sh/resource-policy" in m["metadata"].get("annotations", {})]
    assert kept == ["CustomResourceDefinition"]


def test_generated_files_are_current(helm: Helm, root: Path) -> None:
    definition = yaml.safe_load((root / "charts/fairlead/files/llmdeployment-crd.yaml").read_text())
    assert definition == crd.crd()
    rendered = helm("template", "fairlead", root / "charts/fairlead", "--namespace", "fairlead-system").stdout
    plain = (root / "manifests/fairlead.yaml").read_text()
    assert list(yaml.safe_load_all(plain)) == list(yaml.safe_load_all(rendered)), "run `make manifests`"


def test_crd_can_be_left_out(render: Render) -> None:
    assert "CustomResourceDefinition" not in kinds(render(crd={"install": False}))


def test_watches_all_namespaces_by_default(render: Render) -> None:
    manifests = render()
    assert names(manifests, "Role") == names(manifests, "RoleBinding") == {"fairlead-operator-lease"}
    assert not any(flag.startswith("--namespace") for flag in arguments(manifests, "operator"))
    assert not any(flag.startswith("--namespace") for flag in arguments(manifests, "router"))


def test_chosen_namespaces_need_no_cluster_wide_rights(render: Render) -> None:
    manifests = render(watchNamespaces=["team-a", "team-b"], rbac={"aggregateToDefaultRoles": False})
    assert not {"ClusterRole", "ClusterRoleBinding"} & kinds(manifests)
    for component in ("operator", "router"):
        for kind in ("Role", "RoleBinding"):
            where = {
                m["metadata"]["namespace"]
                for m in manifests
                if m["kind"] == kind and m["metadata"]["name"] == f"fairlead-{component}"
            }
            assert {"team-a", "team-b"} <= where
        flags = arguments(manifests, component)
        assert [flag for flag in flags if flag.startswith("--namespace")] == [
            "--namespace=team-a",
            "--namespace=team-b",
        ]


def test_bindings_name_accounts_that_exist(manifests: list[Manifest]) -> None:
    accounts = {m["metadata"]["name"] for m in manifests if m["kind"] == "ServiceAccount"}
    assert accounts == {pod["serviceAccountName"] for pod in pods(manifests)}
    for manifest in manifests:
        if manifest["kind"].endswith("RoleBinding"):
            assert {subject["name"] for subject in manifest["subjects"]} <= accounts
            assert {subject["namespace"] for subject in manifest["subjects"]} == {"fairlead-system"}


def test_image_is_chosen_by_tag_or_digest(render: Render) -> None:
    tagged = render(image={"repository": "fairlead", "tag": "dev"})
    assert {c["image"] for pod in pods(tagged) for c in pod["containers"]} == {"fairlead:dev"}
    assert "--engine-image=fairlead:dev" in arguments(tagged, "operator")
    pinned = render(
        image={"repository": "fairlead", "tag": "dev", "digest": DIGEST}, engine={"image": "engine:2"}
    )
    assert {c["image"] for pod in pods(pinned) for c in pod["containers"]} == {f"fairlead@{DIGEST}"}
    assert "--engine-image=engine:2" in arguments(pinned, "operator")


def test_placement_values_reach_the_pods(render: Render) -> None:
    pod = find(render(**EVERY_VALUE), "Deployment", "fairlead-operator")["spec"]["template"]
    assert pod["metadata"]["annotations"] == {"a": "b"}
    assert pod["metadata"]["labels"]["team"] == "ml"
    assert pod["spec"]["nodeSelector"] == {"pool": "cpu"}
    assert pod["spec"]["tolerations"] == [{"key": "pool", "operator": "Exists"}]
    assert pod["spec"]["affinity"] == {"nodeAffinity": {}}
    assert pod["spec"]["priorityClassName"] == "system-cluster-critical"
    assert pod["spec"]["imagePullSecrets"] == [{"name": "registry"}]


def test_router_service_follows_its_values(render: Render) -> None:
    service = find(render(), "Service", "fairlead-router")["spec"]
    assert service["type"] == "ClusterIP"
    assert service["ports"] == [{"name": "http", "port": 80, "targetPort": "http"}]
    open_service = find(render(**EVERY_VALUE), "Service", "fairlead-router")["spec"]
    assert open_service["type"] == "NodePort"
    assert open_service["ports"] == [{"name": "http", "port": 8080, "targetPort": "http", "nodePort": 30080}]


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("router.replica=2", "replica"),
        ("router.replicas=-1", "replicas"),
        ("image.digest=latest", "digest"),
        ("router.policy=fastest", "policy"),
        ("router.service.typ=NodePort", "typ"),
        ("replicas=2", "replicas"),
        ("watchNamespaces={Team_A}", "watchNamespaces"),
    ],
)
def test_values_schema_refuses_invalid_settings(helm: Helm, root: Path, setting: str, named: str) -> None:
    result = helm("template", "fairlead", root / "charts/fairlead", "--set", setting)
    assert result.returncode != 0
    assert named in result.stderr


def test_values_schema_covers_every_value(root: Path) -> None:
    values = yaml.safe_load((root / "charts/fairlead/values.yaml").read_text())
    schema = yaml.safe_load((root / "charts/fairlead/values.schema.json").read_text())

    def check(value: Any, node: dict[str, Any], where: str) -> None:
        for key, inner in value.items():
            assert key in node["properties"], f"{where}.{key}"
            if isinstance(inner, dict) and "properties" in node["properties"][key]:
                check(inner, node["properties"][key], f"{where}.{key}")

    check(values, schema, "values")
