"""The operator against a real API server; the tests act as controller-manager and kubelet."""

import urllib.request
from typing import Any

import pytest
from waiting import until

pytestmark = pytest.mark.usefixtures("operator")


def report_ready(world: Any, name: str, replicas: int, namespace: str = "default") -> None:
    """Report all replicas as ready, as the Deployment's controller does."""
    generation = world.get("deployment", f"{name}-engine", namespace)["metadata"]["generation"]
    status = {
        "observedGeneration": generation,
        "replicas": replicas,
        "updatedReplicas": replicas,
        "readyReplicas": replicas,
        "availableReplicas": replicas,
    }
    world.set_status("deployment", f"{name}-engine", status, namespace)


def template(world: Any, name: str) -> dict[str, Any]:
    found = world.get("deployment", f"{name}-engine")["spec"]["template"]
    assert isinstance(found, dict)
    return found


def test_creates_owned_children_without_finalizers(world: Any, manifest: Any, name: str) -> None:
    world.apply(manifest(name, replicas=2))
    until(lambda: world.condition(name, "Ready")["reason"] == "Starting")
    owner = world.get("llmd", name)
    assert "finalizers" not in owner["metadata"]
    assert not any("kopf" in key for key in owner["metadata"]["annotations"])
    for kind in ("deployment", "service", "serviceaccount"):
        child = world.get(kind, f"{name}-engine")
        (reference,) = child["metadata"]["ownerReferences"]
        assert (reference["uid"], reference["controller"], reference["blockOwnerDeletion"]) == (
            owner["metadata"]["uid"],
            True,
            True,
        )
        assert "finalizers" not in child["metadata"]
    assert world.get("deployment", f"{name}-engine")["spec"]["replicas"] == 2
    assert owner["status"]["observedGeneration"] == owner["metadata"]["generation"]


def test_is_ready_with_its_replicas(world: Any, manifest: Any, name: str) -> None:
    world.apply(manifest(name))
    until(lambda: world.get("deployment", f"{name}-engine"))
    report_ready(world, name, 1)
    world.kubectl("wait", "--for=condition=Ready", f"llmd/{name}", "--timeout=30s")
    columns = until(lambda: columns_with(world, name, "ReplicasReady"))
    assert columns[:5] == [name, "hf://org/name", "1", "1", "ReplicasReady"]
    assert world.condition(name, "Progressing")["status"] == "False"


def columns_with(world: Any, name: str, word: str) -> list[str] | None:
    columns = world.kubectl("get", "llmd", name, "--no-headers").split()
    return columns if word in columns else None


def test_scales_through_the_subresource(world: Any, manifest: Any, name: str) -> None:
    world.apply(manifest(name))
    before = until(lambda: template(world, name))
    world.kubectl("scale", f"llmd/{name}", "--replicas=3")
    until(lambda: world.get("deployment", f"{name}-engine")["spec"]["replicas"] == 3)
    assert template(world, name) == before
    scale = world.kubectl(
        "get", "--raw", f"/apis/fairlead.dev/v1alpha1/namespaces/default/llmdeployments/{name}/scale"
    )
    assert f"fairlead.dev/llmdeployment={name}" in scale


def test_an_edit_changes_the_pod_template(world: Any, manifest: Any, name: str) -> None:
    world.apply(manifest(name))
    until(lambda: template(world, name))
    world.apply(manifest(name, engine={"maxModelLen": 512}))
    until(
        lambda: "--max-model-len=512" in template(world, name)["spec"]["containers"][0]["args"],
    )
    assert until(lambda: world.get("llmd", name)["status"]["observedGeneration"] == 2)


def test_repairs_drift_of_children(world: Any, manifest: Any, name: str) -> None:
    world.apply(manifest(name, replicas=2))
    before = until(lambda: template(world, name))
    image = [{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "evil:1"}]
    world.kubectl("patch", "deployment", f"{name}-engine", "--type=json", "-p", str(image).replace("'", '"'))
    world.kubectl("scale", f"deployment/{name}-engine", "--replicas=7")
    world.kubectl("delete", "service", f"{name}-engine")
    until(lambda: template(world, name) == before)
    until(lambda: world.get("deployment", f"{name}-engine")["spec"]["replicas"] == 2)
    until(lambda: world.get("service", f"{name}-engine"))


def test_a_pods_reason_becomes_a_condition_and_one_event(world: Any, manifest: Any, name: str) -> None:
    world.apply(manifest(name))
    labels = until(lambda: template(world, name))["metadata"]["labels"]
    world.apply(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default", "labels": labels},
            "spec": {
                "containers": [{"name": "engine", "image": "x"}],
                "initContainers": [{"name": "model", "image": "x"}],
            },
        }
    )
    ended = {"exitCode": 1, "message": "fairlead fetch: there is no model org/name"}
    container = {"name": "model", "image": "x", "imageID": "", "ready": False, "restartCount": 1}
    state = {"state": {"terminated": ended}}
    world.set_status("pod", name, {"phase": "Pending", "initContainerStatuses": [container | state]})
    found = until(lambda: world.degraded(name, "ModelFetchFailed"))
    assert found["message"] == "the model could not be fetched: fairlead fetch: there is no model org/name"
    events = until(lambda: event_with(world, name, "ModelFetchFailed"))
    assert events.count("ModelFetchFailed") == 1
    world.kubectl("delete", "pod", name, "--force", "--grace-period=0")
    until(lambda: world.condition(name, "Degraded")["status"] == "False")


def event_with(world: Any, name: str, reason: str) -> str | None:
    events = str(world.kubectl("events", "--for", f"llmd/{name}"))
    return events if reason in events else None


def failing_with(world: Any, name: str, reason: str, words: str) -> bool:
    found = world.degraded(name, reason)
    return found is not None and words in found["message"]


def test_an_impossible_pod_template_becomes_a_condition(world: Any, manifest: Any, name: str) -> None:
    world.apply(manifest(name, podTemplate={"spec": {"serviceAccountName": "admin"}}))
    found = until(lambda: world.degraded(name, "InvalidSpec"))
    assert found["message"].startswith(
        "spec.podTemplate.spec.serviceAccountName: the operator does not allow"
    )
    world.apply(manifest(name, podTemplate={"spec": {"priority": "high"}}))
    found = until(lambda: world.degraded(name, "Refused"))
    assert "priority" in found["message"]
    limits = [{"name": "engine", "resources": {"limits": {"cpu": "lots"}}}]
    world.apply(manifest(name, podTemplate={"spec": {"containers": limits}}))
    found = until(lambda: failing_with(world, name, "Refused", "quantities"))
    port = [{"name": "engine", "ports": [{"containerPort": 70000}]}]
    world.apply(manifest(name, podTemplate={"spec": {"containers": port}}))
    until(lambda: failing_with(world, name, "Refused", "containerPort: Invalid value"))
    world.apply(manifest(name))
    until(lambda: world.condition(name, "Degraded")["status"] == "False")


def test_a_paused_deployment_is_changed_once_it_is_resumed(world: Any, manifest: Any, name: str) -> None:
    world.apply(manifest(name))
    before = until(lambda: template(world, name))
    world.kubectl("annotate", "llmd", name, "fairlead.dev/paused=true")
    until(lambda: world.condition(name, "Progressing")["reason"] == "Paused")
    world.apply(manifest(name, engine={"maxModelLen": 512}))
    until(lambda: world.get("llmd", name)["status"]["observedGeneration"] == 2)
    assert template(world, name) == before

    world.kubectl("annotate", "llmd", name, "fairlead.dev/paused-")

    until(lambda: "--max-model-len=512" in template(world, name)["spec"]["containers"][0]["args"])
    until(lambda: world.condition(name, "Progressing")["reason"] == "RollingOut")


def test_wide_columns_show_image_restarts_and_message(world: Any, manifest: Any, name: str) -> None:
    world.apply(manifest(name))
    until(lambda: world.get("llmd", name)["status"]["image"])
    header, row = world.kubectl("get", "llmd", name, "-o", "wide").splitlines()
    assert header.split()[-3:] == ["IMAGE", "RESTARTS", "MESSAGE"]
    assert row.endswith(" 0          pods are being started") and " engine:1 " in row


def test_leaves_an_object_of_another_owner_alone(world: Any, manifest: Any, name: str) -> None:
    port = {"name": "web", "port": 80, "protocol": "TCP"}
    stranger = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": f"{name}-engine", "namespace": "default"},
        "spec": {"selector": {"app": "web"}, "ports": [port]},
    }
    world.apply(stranger)
    world.apply(manifest(name))
    found = until(lambda: world.degraded(name, "ChildExists"))
    assert found["message"] == f"a Service named {name}-engine is there already and is not ours"
    assert world.get("service", f"{name}-engine")["spec"]["selector"] == {"app": "web"}


def test_a_served_name_of_another_namespace_is_invalid(world: Any, manifest: Any, name: str) -> None:
    taken = f"kube-system/{name}"
    world.apply(manifest(name, model={"uri": "a/b", "servedNames": [taken]}))

    found = until(lambda: world.degraded(name, "InvalidSpec"))

    assert found["message"].startswith("spec.model.servedNames: a served name has a slash in it only if")


def test_a_served_name_has_one_holder(world: Any, manifest: Any, name: str) -> None:
    namespace = "elsewhere"
    world.kubectl("create", "namespace", namespace)
    world.apply(manifest(name))
    until(lambda: world.condition(name, "Ready"))
    later = manifest("second", namespace=namespace, model={"uri": "a/b", "servedNames": [name]})
    created = world.get("llmd", name)["metadata"]["creationTimestamp"]
    world.apply(later)
    # Creation times are whole seconds; within one the namespace decides, and default comes first.
    assert world.get("llmd", "second", namespace)["metadata"]["creationTimestamp"] >= created
    found = until(lambda: world.condition("second", "NameTaken", namespace))
    assert (found["status"], found["message"]) == (
        "True",
        f"{name} is held by default/{name}; requests reach this one as elsewhere/second",
    )
    assert not world.condition(name, "NameTaken")
    world.kubectl("delete", "llmd", name)
    until(lambda: not world.condition("second", "NameTaken", namespace))


def test_writes_nothing_without_a_change(world: Any, manifest: Any, name: str, operator: Any) -> None:
    world.apply(manifest(name))
    until(lambda: world.condition(name, "Ready"))
    kinds = "deployment,service,serviceaccount"

    def versions() -> str:
        rows = "jsonpath={range .items[*]}{.kind}/{.metadata.name}@{.metadata.resourceVersion} {end}"
        return str(world.kubectl("get", kinds, "-l", f"fairlead.dev/llmdeployment={name}", "-o", rows)) + str(
            world.get("llmd", name)["metadata"]["resourceVersion"]
        )

    settled(world, operator)
    before, reconciles = versions(), reconciled(operator)
    world.kubectl("annotate", "llmd", name, "poke=1")
    until(lambda: reconciled(operator) > reconciles)
    settled(world, operator)
    after = versions()
    assert before.split()[:-1] == after.split()[:-1], "the children were written"
    settled(world, operator)
    assert versions() == after, "the status was written"


def reconciled(operator: Any) -> float:
    return metric(operator, 'fairlead_operator_reconciles_total{outcome="success"}')


def metric(operator: Any, series: str) -> float:
    lines = metrics_text(operator).splitlines()
    return next((float(line.split()[-1]) for line in lines if line.startswith(series)), 0.0)


def metrics_text(operator: Any) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{operator.metrics_port}/metrics") as answer:
        return str(answer.read().decode())


def settled(world: Any, operator: Any, quiet: int = 15) -> None:
    """Wait until no reconcile has happened for `quiet` looks in a row."""
    seen: list[float] = []

    def still() -> bool:
        seen.append(reconciled(operator))
        return len(seen) > quiet and len(set(seen[-quiet:])) == 1

    until(still)


def test_metrics_have_a_series_for_each_condition_until_the_object_is_deleted(
    world: Any, manifest: Any, name: str, operator: Any
) -> None:
    world.apply(manifest(name, replicas=2))
    ready = (
        f'fairlead_operator_condition{{condition="Ready",name="{name}",namespace="default",status="False"}}'
    )
    until(lambda: metric(operator, ready) == 1)
    assert f'name="{name}",namespace="default",status="True"' in metrics_text(operator)
    labels = f'{{name="{name}",namespace="default"}}'
    assert metric(operator, f"fairlead_operator_desired_replicas{labels}") == 2
    assert metric(operator, f"fairlead_operator_ready_replicas{labels}") == 0
    assert metric(operator, "fairlead_operator_leader") == 1
    world.kubectl("delete", "llmd", name)
    until(lambda: name not in metrics_text(operator))


def test_needs_no_rights_beyond_its_namespaces(
    world: Any, manifest: Any, start_operator: Any, name: str
) -> None:
    for namespace in ("red", "blue"):
        world.kubectl("create", "namespace", namespace)
    account = world.service_account("red", "red", "blue")
    start_operator(
        account, "--namespace=red", "--namespace=blue", "--lease-namespace=red", "--engine-image=other:1"
    )
    for namespace in ("red", "blue"):
        world.apply(manifest(namespace, namespace=namespace))
        until(lambda namespace=namespace: world.condition(namespace, "Ready", namespace))
