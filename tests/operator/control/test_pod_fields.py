"""The fields that shape pods, carried out by a running operator on the API server."""

from collections.abc import Iterator
from typing import Any

import pytest
from operators import Operator
from waiting import until

pytestmark = pytest.mark.usefixtures("operator")


@pytest.fixture(scope="module")
def private(world: Any) -> str:
    """A namespace whose default account has a Secret for images, and an entry without a name."""
    home = world.create_namespace(f"{world.namespace}-private")
    default = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": "default", "namespace": home},
    }
    world.apply({**default, "imagePullSecrets": [{"name": "registry"}, {}]})
    return str(home)


@pytest.fixture(scope="module")
def operator(world: Any, private: str, run_operator: Any) -> Iterator[Operator]:
    """Run one operator of both namespaces."""
    home = world.namespace
    account = world.service_account(home, home, private)
    flags = (f"--namespace={home}", f"--namespace={private}", f"--lease-namespace={home}")
    with run_operator(account, *flags) as running:
        yield running


def template_of(world: Any, name: str) -> dict[str, Any]:
    return dict(world.get("deployment", f"{name}-engine")["spec"]["template"])


def test_a_changed_file_rolls_and_a_removed_one_leaves_no_config_map(world: Any, manifest: Any) -> None:
    def files(text: str) -> dict[str, Any]:
        return {"files": [{"path": "/templates/chat.jinja", "content": text}]}

    def contents() -> list[dict[str, str]]:
        owned = world.list("configmap", labelSelector="fairlead.dev/llmdeployment=files")
        return [each["data"] for each in owned if each.get("immutable")]

    def roll_out(generation: int) -> None:
        """Count the Deployment's generation, as its controller does."""
        world.set_status("deployment", "files-engine", {"observedGeneration": generation})

    world.apply(manifest(name="files", engine=files("first")))
    first = until(lambda: template_of(world, "files"))
    assert contents() == [{"0": "first"}]

    world.apply(manifest(name="files", engine=files("second")))
    until(lambda: template_of(world, "files") != first)
    roll_out(2)
    until(lambda: contents() == [{"0": "second"}])

    world.apply(manifest(name="files"))
    until(lambda: all(volume["name"] != "files" for volume in template_of(world, "files")["spec"]["volumes"]))
    roll_out(3)
    until(lambda: contents() == [])


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

    pod = until(lambda: template_of(world, "every"))["spec"]

    (engine,) = pod["containers"]
    assert engine["resources"]["limits"] == {"amd.com/gpu": "2", "ephemeral-storage": "40Gi"}
    assert [toleration["key"] for toleration in pod["tolerations"]] == ["amd.com/gpu", "spot"]
    assert engine["envFrom"] == [{"prefix": "B_", "secretRef": {"name": "more", "optional": True}}]
    until(lambda: world.reason("every", "Ready") == "Starting")


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
    assert world.find("deployment", "forbidden-engine") is None


def test_accounts_of_engines_get_the_pull_secrets_of_the_default_account(
    world: Any, private: str, manifest: Any
) -> None:
    annotations = {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/r"}
    world.apply(manifest("secrets", private, serviceAccount={"annotations": annotations}))

    account = until(lambda: world.get("serviceaccount", "secrets-engine", private))

    assert account["imagePullSecrets"] == [{"name": "registry"}]
    assert annotations.items() <= account["metadata"]["annotations"].items()


def test_an_unknown_profile_is_reported_with_the_known_ones(world: Any, manifest: Any) -> None:
    world.apply(manifest(name="unknown-profile", profile="gpu-h200"))

    condition = until(lambda: world.degraded("unknown-profile", "InvalidSpec"))

    assert "spec.profile: the operator has no profile 'gpu-h200'; it has: none" in condition["message"]
