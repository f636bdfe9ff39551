"""The operator against a real API server; the tests act as controller-manager and kubelet."""

from collections.abc import Iterator
from typing import Any

import pytest
from kubernetes_client import JSON_PATCH
from operators import Operator, reconciles, settle
from waiting import until

pytestmark = pytest.mark.usefixtures("operator")


@pytest.fixture(scope="module")
def operator(world: Any, run_operator: Any) -> Iterator[Operator]:
    """Run one operator of all namespaces."""
    with run_operator(world.cluster_wide_account(), f"--lease-namespace={world.namespace}") as running:
        yield running


def report_ready(world: Any, name: str, replicas: int) -> None:
    """Report all replicas as ready, as the Deployment's controller does."""
    generation = world.get("deployment", f"{name}-engine")["metadata"]["generation"]
    status = {
        "observedGeneration": generation,
        "replicas": replicas,
        "updatedReplicas": replicas,
        "readyReplicas": replicas,
        "availableReplicas": replicas,
    }
    world.set_status("deployment", f"{name}-engine", status)


def template(world: Any, name: str) -> dict[str, Any]:
    return dict(world.get("deployment", f"{name}-engine")["spec"]["template"])


def test_creates_owned_children_without_finalizers(world: Any, manifest: Any, name: str) -> None:
    world.apply(manifest(name, replicas=2))
    until(lambda: world.reason(name, "Ready") == "Starting")
    owner = world.get("llmd", name)
    assert "finalizers" not in owner["metadata"]
    assert not any("kopf" in key for key in owner["metadata"].get("annotations", {}))
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
    world.kubectl("wait", "-n", world.namespace, "--for=condition=Ready", f"llmd/{name}", "--timeout=60s")
    columns = until(lambda: columns_with(world, name, "ReplicasReady"))
    assert columns[:5] == [name, "hf://org/name", "1", "1", "ReplicasReady"]
    assert world.condition(name, "Progressing")["status"] == "False"


def columns_with(world: Any, name: str, word: str) -> list[str] | None:
    columns = world.kubectl("get", "llmd", name, "-n", world.namespace, "--no-headers").split()
    return columns if word in columns else None


def test_variables_keep_the_specs_order_when_one_is_inserted(world: Any, manifest: Any, name: str) -> None:
    def order() -> list[str]:
        (engine,) = template(world, name)["spec"]["containers"]
        return [variable["name"] for variable in engine["env"]]

    referring = [{"name": "HF_HOME", "value": "$(ROOT)/hf"}, {"name": "LAST", "value": "$(HF_HOME)"}]
    world.apply(manifest(name, engine={"env": referring}))
    until(lambda: order()[-2:] == ["HF_HOME", "LAST"])

    world.apply(manifest(name, engine={"env": [{"name": "ROOT", "value": "/cache"}, *referring]}))

    until(lambda: order()[-3:] == ["ROOT", "HF_HOME", "LAST"])


def test_scales_through_the_subresource(world: Any, manifest: Any, name: str) -> None:
    world.apply(manifest(name))
    before = until(lambda: template(world, name))
    world.kubectl("scale", f"llmd/{name}", "-n", world.namespace, "--replicas=3")
    until(lambda: world.get("deployment", f"{name}-engine")["spec"]["replicas"] == 3)
    assert template(world, name) == before
    until(lambda: world.condition(name, "Ready"))
    scale = world.call("GET", f"{world.path('llmd', name)}/scale")
    assert f"fairlead.dev/llmdeployment={name}" in scale["status"]["selector"]


def test_an_edit_changes_the_pod_template(world: Any, manifest: Any, name: str) -> None:
    world.apply(manifest(name))
    until(lambda: template(world, name))
    world.apply(manifest(name, engine={"maxModelLen": 512}))
    until(
        lambda: "--max-model-len=512" in template(world, name)["spec"]["containers"][0]["args"],
    )
    assert until(lambda: world.observed_generation(name) == 2)


def test_an_edit_is_waited_for_until_its_rollout_is_complete(world: Any, manifest: Any, name: str) -> None:
    world.apply(manifest(name))
    until(lambda: template(world, name))
    report_ready(world, name, 1)
    until(lambda: world.condition(name, "Ready").get("status") == "True")
    wait = ("wait", "-n", world.namespace, "--for=condition=Progressing=False", f"llmd/{name}")

    world.apply(manifest(name, engine={"maxModelLen": 512}))

    assert "timed out waiting" in world.refused(*wait, "--timeout=1s")
    assert until(lambda: world.condition(name, "Reconciling"))["status"] == "True"
    report_ready(world, name, 1)
    world.kubectl(*wait, "--timeout=30s")
    assert not any(world.condition(name, kind) for kind in ("Reconciling", "Stalled"))


def test_repairs_drift_of_children(world: Any, manifest: Any, name: str) -> None:
    world.apply(manifest(name, replicas=2))
    before = until(lambda: template(world, name))
    image = [{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "evil:1"}]
    world.patch("deployment", f"{name}-engine", image, content_type=JSON_PATCH)
    world.scale("deployment", f"{name}-engine", 7)
    world.delete("service", f"{name}-engine")
    until(lambda: template(world, name) == before)
    until(lambda: world.get("deployment", f"{name}-engine")["spec"]["replicas"] == 2)
    until(lambda: world.get("service", f"{name}-engine"))


@pytest.mark.parametrize("owner", ["nobody", "a ReplicaSet of another Deployment"])
def test_only_pods_that_the_deployment_owns_count_as_replicas(
    world: Any, manifest: Any, name: str, owner: str
) -> None:
    name = f"{name[:40]}-{len(owner)}"
    other = f"{name}-other"
    world.apply(manifest(name), manifest(other))
    labels = until(lambda: template(world, name))["metadata"]["labels"]
    until(lambda: template(world, other))
    owners = [] if owner == "nobody" else world.pod_owners(other)
    pod = {"metadata": {"name": name, "labels": labels, "ownerReferences": owners}}
    world.apply(
        {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "engine", "image": "x"}]}} | pod
    )
    container = {"name": "engine", "image": "x", "imageID": "", "ready": False, "restartCount": 7}
    waiting = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}}
    world.set_status("pod", name, {"phase": "Pending", "containerStatuses": [container | waiting]})

    # The operator has seen the pod by the time at which it has carried out a later edit.
    world.apply(manifest(name, replicas=3))
    until(lambda: world.observed_generation(name) == 2)
    assert world.get("llmd", name)["status"]["restarts"] == 0
    assert world.reason(name, "Degraded") != "CrashLoopBackOff"


def test_a_pods_reason_becomes_a_condition_and_one_event(world: Any, manifest: Any, name: str) -> None:
    world.apply(manifest(name))
    labels = until(lambda: template(world, name))["metadata"]["labels"]
    world.apply(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": labels, "ownerReferences": world.pod_owners(name)},
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
    world.delete("pod", name)
    until(lambda: world.condition(name, "Degraded").get("status") == "False")


def event_with(world: Any, name: str, reason: str) -> str | None:
    events = str(world.kubectl("events", "-n", world.namespace, "--for", f"llmd/{name}"))
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
    until(lambda: world.condition(name, "Degraded").get("status") == "False")


def test_a_paused_deployment_is_changed_once_it_is_resumed(world: Any, manifest: Any, name: str) -> None:
    world.apply(manifest(name))
    before = until(lambda: template(world, name))
    world.annotate("llmd", name, {"fairlead.dev/paused": "true"})
    until(lambda: world.reason(name, "Progressing") == "Paused")
    world.apply(manifest(name, engine={"maxModelLen": 512}))
    until(lambda: world.observed_generation(name) == 2)
    assert template(world, name) == before

    world.annotate("llmd", name, {"fairlead.dev/paused": None})

    until(lambda: "--max-model-len=512" in template(world, name)["spec"]["containers"][0]["args"])
    until(lambda: world.reason(name, "Progressing") == "RollingOut")


def test_wide_columns_show_image_restarts_and_message(world: Any, manifest: Any, name: str) -> None:
    world.apply(manifest(name))
    until(lambda: world.get("llmd", name).get("status", {}).get("image"))
    header, row = world.kubectl("get", "llmd", name, "-n", world.namespace, "-o", "wide").splitlines()
    assert header.split()[-3:] == ["IMAGE", "RESTARTS", "MESSAGE"]
    assert row.endswith(" 0          pods are being started") and " engine:1 " in row


def test_leaves_an_object_of_another_owner_alone(world: Any, manifest: Any, name: str) -> None:
    port = {"name": "web", "port": 80, "protocol": "TCP"}
    stranger = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": f"{name}-engine"},
        "spec": {"selector": {"app": "web"}, "ports": [port]},
    }
    world.apply(stranger)
    world.apply(manifest(name))
    found = until(lambda: world.degraded(name, "ChildExists"))
    assert found["message"] == f"a Service named {name}-engine is there already and is not ours"
    assert world.get("service", f"{name}-engine")["spec"]["selector"] == {"app": "web"}


def test_a_deployment_that_is_created_anew_follows_the_deletion_of_its_former_children(
    world: Any, manifest: Any, name: str
) -> None:
    world.apply(manifest(name))
    former = until(lambda: world.find("service", f"{name}-engine"))
    until(lambda: world.find("deployment", f"{name}-engine"))
    world.delete("llmd", name)
    until(lambda: world.find("llmd", name) is None)

    world.apply(manifest(name, replicas=2))

    # No controller deletes the children before the test does.
    found = until(lambda: world.condition(name, "Reconciling"))
    assert (found["status"], found["reason"]) == ("True", "ChildTerminating")
    assert not world.condition(name, "Stalled")
    for kind in ("serviceaccount", "service", "pdb", "deployment"):
        world.delete(kind, f"{name}-engine")
    until(lambda: world.get("deployment", f"{name}-engine")["spec"]["replicas"] == 2)
    until(lambda: world.reason(name, "Reconciling") == "RollingOut")
    assert world.get("service", f"{name}-engine")["metadata"]["uid"] != former["metadata"]["uid"]


def test_a_served_name_of_another_namespace_is_invalid(world: Any, manifest: Any, name: str) -> None:
    taken = f"kube-system/{name}"
    world.apply(manifest(name, model={"uri": "a/b", "servedNames": [taken]}))

    found = until(lambda: world.degraded(name, "InvalidSpec"))

    assert found["message"].startswith(
        f"spec.model.servedNames[0]: {taken} could be the NAMESPACE/NAME of another"
    )


def test_a_served_name_may_be_that_of_a_repository(world: Any, manifest: Any, name: str) -> None:
    world.apply(manifest(name, model={"uri": "a/b", "servedNames": ["Qwen/Qwen3-0.6B"]}))

    until(lambda: world.reason(name, "Ready") == "Starting")


def test_a_served_name_has_one_holder(world: Any, manifest: Any, name: str) -> None:
    # Creation times are whole seconds; within one the namespace decides, and the module's own comes first.
    namespace = world.create_namespace(f"{world.namespace}-x")
    world.apply(manifest(name))
    until(lambda: world.condition(name, "Ready"))
    later = manifest("second", namespace=namespace, model={"uri": "a/b", "servedNames": [name]})
    created = world.get("llmd", name)["metadata"]["creationTimestamp"]
    world.apply(later)
    assert world.get("llmd", "second", namespace)["metadata"]["creationTimestamp"] >= created
    found = until(lambda: world.condition("second", "NameTaken", namespace))
    assert (found["status"], found["message"]) == (
        "True",
        f"{name} is held by {world.namespace}/{name}; requests reach this one as {namespace}/second",
    )
    assert not world.condition(name, "NameTaken")
    world.delete("llmd", name)
    until(lambda: not world.condition("second", "NameTaken", namespace))


def test_writes_nothing_without_a_change(world: Any, manifest: Any, name: str) -> None:
    world.apply(manifest(name))
    until(lambda: world.condition(name, "Ready"))

    def versions() -> list[str]:
        selector = f"fairlead.dev/llmdeployment={name}"
        kinds = ("deployment", "service", "serviceaccount")
        children = [item for kind in kinds for item in world.list(kind, labelSelector=selector)]
        return [item["metadata"]["resourceVersion"] for item in (*children, world.get("llmd", name))]

    settle()
    before, done = versions(), reconciles()
    world.annotate("llmd", name, {"poke": "1"})
    until(lambda: reconciles() > done)
    settle()
    after = versions()
    assert len(before) == 4 and before[:-1] == after[:-1], "the children were written"
    settle()
    assert versions() == after, "the status was written"


def test_metrics_have_a_series_for_each_condition_until_the_object_is_deleted(
    world: Any, manifest: Any, name: str, operator: Any
) -> None:
    world.apply(manifest(name, replicas=2))
    labels = {"name": name, "namespace": world.namespace}
    condition = "fairlead_operator_condition"
    until(lambda: operator.metric(condition, condition="Ready", status="False", **labels) == 1)
    assert operator.metric(condition, status="True", **labels) > 0
    assert operator.metric("fairlead_operator_desired_replicas", **labels) == 2
    model = f'model="{world.namespace}/{name}",name="{name}",namespace="{world.namespace}"'
    assert f"fairlead_operator_ready_replicas{{{model}}} 0.0" in operator.metrics()
    assert operator.metric("fairlead_operator_leader") == 1
    world.delete("llmd", name)
    until(lambda: name not in operator.metrics())
