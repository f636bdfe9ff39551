"""The fields that shape pods, carried out by a running operator on the API server."""

from typing import Any

import pytest
from waiting import until

pytestmark = pytest.mark.usefixtures("operator")


def deployment_of(world: Any, name: str) -> dict[str, Any] | None:
    done = world.api_server.kubectl("get", "deployment", f"{name}-engine", "-n", "default")
    found: dict[str, Any] | None = world.get("deployment", f"{name}-engine") if done.returncode == 0 else None
    return found


def template_of(world: Any, name: str) -> dict[str, Any]:
    found = until(lambda: deployment_of(world, name))
    template: dict[str, Any] = found["spec"]["template"]
    return template


def test_a_changed_file_rolls_and_a_removed_one_leaves_no_config_map(world: Any, manifest: Any) -> None:
    def files(text: str) -> dict[str, Any]:
        return {"files": [{"path": "/templates/chat.jinja", "content": text}]}

    world.apply(manifest(name="files", engine=files("first")))
    first = template_of(world, "files")
    assert world.get("configmap", "files-files")["data"] == {"0": "first"}

    world.apply(manifest(name="files", engine=files("second")))
    until(lambda: template_of(world, "files") != first)
    assert world.get("configmap", "files-files")["data"] == {"0": "second"}

    world.apply(manifest(name="files"))
    until(lambda: "files-files" not in world.kubectl("get", "configmaps", "-n", "default", "-o", "name"))
    world.kubectl("delete", "llmd", "files")


def test_the_api_server_takes_a_deployment_with_every_field(world: Any, manifest: Any) -> None:
    spec = {
        "engine": {
            "env": [{"name": "A", "value": "b"}],
            "envFrom": [{"prefix": "B_", "secretRef": {"name": "more", "optional": True}}],
            "files": [
                {"path": "/etc/a", "content": "x"},
                {"path": "/etc/b", "secret": {"name": "s", "key": "k"}},
                {"path": "/etc/c", "configMap": {"name": "c", "key": "k"}},
            ],
        },
        "resources": {"gpu": 2, "gpuResource": "amd.com/gpu", "cpu": 1, "shm": "1Gi", "disk": "40Gi"},
        "podTemplate": {"spec": {"tolerations": [{"key": "spot", "operator": "Exists"}]}},
    }
    world.apply(manifest(name="every", **spec))

    pod = template_of(world, "every")["spec"]

    (engine,) = pod["containers"]
    assert engine["resources"]["limits"] == {"amd.com/gpu": "2", "ephemeral-storage": "40Gi"}
    assert [toleration["key"] for toleration in pod["tolerations"]] == ["amd.com/gpu", "spot"]
    assert engine["envFrom"] == [{"prefix": "B_", "secretRef": {"name": "more", "optional": True}}]
    until(lambda: world.condition("every", "Ready")["reason"] == "Starting")
    world.kubectl("delete", "llmd", "every")


def test_a_pod_template_that_pod_security_forbids_is_reported_with_the_field(
    world: Any, manifest: Any
) -> None:
    overlay = {
        "spec": {
            "containers": [{"name": "engine", "securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}]
        }
    }
    world.apply(manifest(name="forbidden", podTemplate=overlay))

    condition = until(lambda: world.degraded("forbidden", "InvalidSpec"))

    field = "spec.podTemplate.spec.containers[engine].securityContext.capabilities.add[0]"
    assert field in condition["message"] and "it is SYS_ADMIN" in condition["message"]
    assert deployment_of(world, "forbidden") is None
    world.kubectl("delete", "llmd", "forbidden")


def test_accounts_of_engines_get_the_pull_secrets_of_the_default_account(world: Any, manifest: Any) -> None:
    world.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "private"}},
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": "default", "namespace": "private"},
            "imagePullSecrets": [{"name": "registry"}],
        },
    )
    annotations = {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/r"}
    world.apply(manifest("secrets", "private", serviceAccount={"annotations": annotations}))

    account = until(lambda: account_of(world, "secrets", "private"))

    assert account["imagePullSecrets"] == [{"name": "registry"}]
    assert annotations.items() <= account["metadata"]["annotations"].items()
    world.kubectl("delete", "llmd", "secrets", "-n", "private")


def account_of(world: Any, name: str, namespace: str) -> dict[str, Any] | None:
    listed = world.kubectl("get", "serviceaccounts", "-n", namespace, "-o", "name").split()
    account: dict[str, Any] | None = None
    if f"serviceaccount/{name}-engine" in listed:
        account = world.get("serviceaccount", f"{name}-engine", namespace)
    return account


def test_an_unknown_profile_is_reported_with_the_known_ones(world: Any, manifest: Any) -> None:
    world.apply(manifest(name="unknown-profile", profile="gpu-h200"))

    condition = until(lambda: world.degraded("unknown-profile", "InvalidSpec"))

    assert "spec.profile: the operator has no profile 'gpu-h200'; it has: none" in condition["message"]
    world.kubectl("delete", "llmd", "unknown-profile")
