"""The engine's pod template."""

from typing import Any

import pytest


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
    assert goal.pod["terminationGracePeriodSeconds"] == 45


def test_only_the_container_that_fetches_gets_the_token(
    planned: Any, manifest: Any, environment: Any
) -> None:
    goal = planned(manifest(model={"uri": "hf://a/b", "secretRef": {"name": "hub"}}))

    (fetch,) = goal.pod["initContainers"]
    assert environment(fetch)["HF_TOKEN"] == {"secretKeyRef": {"name": "hub", "key": "token"}}
    assert "HF_TOKEN" not in environment(goal.engine)


def test_resources_become_requests_and_limits(planned: Any, manifest: Any, environment: Any) -> None:
    goal = planned(manifest(resources={"gpu": 2, "cpu": "1500m", "memory": "16Gi"}))

    assert goal.engine["resources"] == {
        "requests": {"cpu": "1500m", "memory": "16Gi"},
        "limits": {"memory": "16Gi", "nvidia.com/gpu": "2"},
    }
    (fetch,) = goal.pod["initContainers"]
    assert "nvidia.com/gpu" not in fetch["resources"]["limits"]
    assert "OMP_NUM_THREADS" not in environment(goal.engine)


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


def test_startup_and_liveness_probe_health_and_readiness_probes_ready(planned: Any, manifest: Any) -> None:
    container = planned(manifest()).engine

    paths = {
        kind: container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness", "readiness")
    }
    assert paths == {"startup": "/health", "liveness": "/health", "readiness": "/ready"}
