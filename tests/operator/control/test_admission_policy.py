"""The chart's admission policies: they let the operator work, and bound what its token makes, changes and deletes."""

import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart_manifests import SET_IMAGE
from kubernetes_client import STRATEGIC, Client, RefusedError
from llm_operator.api.schema import SpecError
from llm_operator.plan.pod import pod_security
from pod_specs import POD_SPECS
from waiting import until

CHART = Path(__file__).parents[3] / "charts" / "fairlead"
TEMPLATE = "templates/operator/admission-policy.yaml"
POD = {**POD_SPECS["confined"], "serviceAccountName": "m-engine"}
LABELS = {"fairlead.dev/llmdeployment": "m"}
REFUSED = "ValidatingAdmissionPolicy"


@pytest.fixture(scope="module")
def policies(world: Any) -> Iterator[None]:
    """Apply the policies, for the operator's account of the test's namespace."""
    manifests = rendered(world, "admissionPolicy.releaseNamespace=true")
    world.apply(*manifests)
    yield
    for manifest in manifests:
        world.call(
            "DELETE",
            f"/apis/admissionregistration.k8s.io/v1/{plural(manifest)}/{manifest['metadata']['name']}",
        )


@cache
def rendered(world: Any, *values: str) -> list[dict[str, Any]]:
    """Return the policies of a release in the test's namespace."""
    helm = world.api_server.assets / "helm"
    given = ("admissionPolicy.enabled=true", "operator.serviceAccount.name=operator", *values)
    flags = ["--namespace", world.namespace, "--show-only", TEMPLATE, *(f"--set={each}" for each in given)]
    command = [helm, "template", "fairlead", CHART, SET_IMAGE, *flags]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def rules(documents: list[dict[str, Any]]) -> set[str]:
    return {rule["expression"] for each in documents for rule in each["spec"].get("validations", ())}


def plural(manifest: dict[str, Any]) -> str:
    kind = manifest["kind"].lower()
    return kind.removesuffix("y") + "ies" if kind.endswith("y") else f"{kind}s"


@pytest.fixture(scope="module")
def thief(world: Any, policies: None) -> Client:
    """Somebody with the operator's token, once the policies are in force."""
    client = Client(world.service_account(), world.namespace)
    stranger = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "stranger"}, "spec": POD}
    world.apply(stranger)
    # Each policy is in force at a time of its own.
    for manifest in (
        child("ConfigMap", {}, owner=None),
        deployment(serviceAccountName="admin"),
        stranger | {"metadata": {"name": "stranger", "annotations": {"a": "b"}}},
    ):
        until(lambda manifest=manifest: refusal(client, manifest))
    return client


def child(
    kind: str, content: dict[str, Any], owner: str | None = "LLMDeployment", **metadata: Any
) -> dict[str, Any]:
    reference = {"apiVersion": "fairlead.dev/v1alpha1", "kind": owner, "name": "m", "uid": "u"}
    owners = [reference] if owner else []
    named = {"name": "m-engine", "labels": LABELS, "ownerReferences": owners, **metadata}
    group = {"Deployment": "apps/v1", "Job": "batch/v1"}.get(kind, "v1")
    return {"apiVersion": group, "kind": kind, "metadata": named, **content}


def deployment(**pod: Any) -> dict[str, Any]:
    template = {"metadata": {"labels": LABELS}, "spec": {**POD, **pod}}
    return child("Deployment", {"spec": {"selector": {"matchLabels": LABELS}, "template": template}})


def renamed(manifest: dict[str, Any], name: str) -> dict[str, Any]:
    return {**manifest, "metadata": manifest["metadata"] | {"name": name}}


def job(**pod: Any) -> dict[str, Any]:
    template = {"spec": {**POD, "restartPolicy": "Never", **pod}}
    shared = {"fairlead.dev/llmdeployment": ""}
    return child("Job", {"spec": {"template": template}}, name="model-0", labels=shared)


def refusal(client: Client, manifest: dict[str, Any]) -> str:
    """Return the message with which a policy refuses to apply a manifest; empty if it does not."""
    try:
        client.apply(manifest, manager="fairlead", dryRun="All")
    except RefusedError as error:
        assert REFUSED in error.message, error
        return error.message
    return ""


@pytest.mark.parametrize(
    ("manifest", "words"),
    [
        (child("ConfigMap", {}, owner=None), "owned by an LLMDeployment"),
        (child("ServiceAccount", {}, owner="Deployment"), "owned by an LLMDeployment"),
        (child("ConfigMap", {}, labels={}), "has the label"),
        (deployment(serviceAccountName="admin"), "the account NAME-engine"),
        (deployment(serviceAccountName="other-engine"), "the account NAME-engine"),
        (deployment(hostNetwork=True), "namespaces of their own"),
        (deployment(volumes=[{"name": "v", "hostPath": {"path": "/"}}]), "no hostPath"),
        (deployment(containers=[{"name": "e", "image": "x", "securityContext": {"privileged": True}}]), "privileged"),
        (job(serviceAccountName="admin"), "the account NAME-engine"),
        (job(serviceAccountName="other-engine"), "the account NAME-engine"),
        # Two policies refuse it, and the API server reports either.
        (renamed(deployment(serviceAccountName="default"), "default"), "beginning of its own|account NAME-engine"),
        (renamed(deployment(serviceAccountName="x-engine"), "x-engine"), "beginning of its own"),
        (child("ConfigMap", {}, name="kube-root-ca.crt"), "beginning of its own"),
        (child("ConfigMap", {}, labels={"fairlead.dev/llmdeployment": "other"}), "beginning of its own"),
        (child("ConfigMap", {}, labels={"fairlead.dev/llmdeployment": ""}), "what several share"),
    ],
)  # fmt: skip
def test_the_operators_token_creates_nothing_with_another_owner_label_or_account(
    thief: Client, manifest: dict[str, Any], words: str
) -> None:
    assert re.search(words, refusal(thief, manifest))


@pytest.mark.parametrize("name", POD_SPECS)
def test_the_operators_token_runs_pods_of_the_standard_alone(thief: Client, name: str) -> None:
    manifest = deployment(**POD_SPECS[name])
    pod_template = manifest["spec"]["template"]
    try:
        pod_security.check(pod_template, "restricted", "")
    except SpecError:
        assert REFUSED in refusal(thief, manifest)
    else:
        thief.create(manifest, dryRun="All")


@pytest.mark.parametrize("level", ["baseline", "any"])
def test_rules_of_a_lower_standard_are_a_part_of_those_of_a_higher_one(world: Any, level: str) -> None:
    highest, lower = rules(rendered(world)), rules(rendered(world, f"engine.podSecurity={level}"))
    assert lower < highest
    assert any("hostPath" in rule for rule in lower) == (level == "baseline")


def test_the_releases_namespace_takes_a_value_of_its_own(world: Any) -> None:
    refused = f"request.namespace != '{world.namespace}'"
    assert refused in rules(rendered(world))
    assert refused not in rules(rendered(world, f"watchNamespaces={{{world.namespace}}}"))


def apply(client: Client, manifest: dict[str, Any]) -> None:
    """Apply as the operator does."""
    client.apply(manifest, manager="fairlead")


CONTROLLER = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d", "uid": "d", "controller": True}


@pytest.mark.parametrize(
    ("name", "metadata"),
    [("m-foreign", {}), ("m-controlled", {"labels": LABELS, "ownerReferences": [CONTROLLER]})],
)
def test_the_operators_token_takes_and_deletes_no_object_of_others(
    world: Any, thief: Client, name: str, metadata: dict[str, Any]
) -> None:
    existing = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **metadata}}
    world.apply(existing | {"data": {"a": "theirs"}})

    with pytest.raises(RefusedError, match=REFUSED):
        apply(thief, child("ConfigMap", {"data": {"a": "evil"}}, name=name))
    with pytest.raises(RefusedError, match=REFUSED):
        thief.delete("configmap", name)

    assert world.get("configmap", name)["data"] == {"a": "theirs"}


def test_the_operators_token_adopts_an_orphan_with_the_label_and_deletes_its_own(
    world: Any, thief: Client
) -> None:
    orphan = child("ConfigMap", {}, owner=None, name="m-orphan")
    world.apply(orphan)
    with pytest.raises(RefusedError, match=REFUSED):
        thief.delete("configmap", "m-orphan")

    apply(thief, child("ConfigMap", {"data": {"a": "b"}}, name="m-orphan"))
    thief.delete("configmap", "m-orphan")

    assert world.find("configmap", "m-orphan") is None


def test_a_template_that_the_policies_refuse_by_now_is_scaled_and_not_changed(
    world: Any, thief: Client
) -> None:
    running = deployment(serviceAccountName="former", hostNetwork=True)
    world.apply(running)

    thief.patch("deployment", "m-engine", {"spec": {"replicas": 3}})
    with pytest.raises(RefusedError, match=REFUSED):
        changed = [{"name": "engine", "image": "other"}]
        template = {"spec": {"containers": changed}}
        thief.patch("deployment", "m-engine", {"spec": {"template": template}}, content_type=STRATEGIC)

    assert world.get("deployment", "m-engine")["spec"]["replicas"] == 3
    world.delete("deployment", "m-engine")


def test_the_operators_token_changes_one_annotation_of_replicas_alone(world: Any, thief: Client) -> None:
    for name, labels in (("replica", LABELS), ("other", {})):
        world.apply(
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": POD}
        )
    cost = {"metadata": {"annotations": {"controller.kubernetes.io/pod-deletion-cost": "3"}}}

    thief.patch("pod", "replica", cost)

    for name, change in (
        ("other", cost),
        ("replica", {"metadata": {"labels": {"app": "x"}}}),
        ("replica", {"metadata": {"annotations": {"a": "b"}}}),
        ("replica", {"spec": {"containers": [{"name": "engine", "image": "evil"}]}}),
    ):
        with pytest.raises(RefusedError, match=REFUSED):
            thief.patch("pod", name, change, content_type=STRATEGIC)


def test_an_operator_works_under_the_policies(
    world: Any, manifest: Any, thief: Client, run_operator: Any
) -> None:
    home = world.namespace
    model = {"uri": "hf://tests/policies", "cache": {"size": "1Gi"}}
    with run_operator(
        world.service_account(), f"--namespace={home}", f"--lease-namespace={home}"
    ) as operator:
        world.apply(
            manifest("cached", model=model), manifest("sharing", model=model), manifest("m", replicas=2)
        )
        until(lambda: world.list("job") and len(world.list("job")[0]["metadata"]["ownerReferences"]) == 2)
        until(lambda: world.condition("m", "Ready"))
        changed = {"engine": {"env": [{"name": "A", "value": "b"}]}, "budget": {"enabled": False}}
        world.apply(manifest("m", replicas=1, **changed), manifest("sharing"))
        until(lambda: world.observed_generation("m") == 2)
        until(lambda: not world.find("pdb", "m-engine"))
        until(lambda: len(world.list("pvc")[0]["metadata"]["ownerReferences"]) == 1)
        world.delete("llmd", "sharing")
        assert world.condition("m", "Degraded")["status"] == "False"
        assert REFUSED not in operator.log
