"""Planned pods as local processes."""

from pathlib import Path
from typing import Any

import pytest
from llm_local import replica
from llm_operator.api.schema import SpecError
from llm_operator.api.spec import parse
from llm_operator.observed import Observed, workload_key
from llm_operator.plan.plan import plan
from llm_operator.settings import Settings

NO_FILE = Path("/nowhere/adapters.json")
SOCKET = Path("/nowhere/engine-0.sock")


def test_arguments_differ_from_the_planned_container_in_socket_and_model(manifest: Any) -> None:
    document = manifest(
        replicas=3,
        engine={
            "maxModelLen": 512,
            "args": ["--max-num-seqs=8", "--seed=3"],
            "env": [{"name": "A", "value": "b"}],
        },
        resources={"gpu": 2, "cpu": "3", "memory": "4Gi"},
        rollout={"drainTimeoutSeconds": 5},
    )
    deployment = parse(document)
    goal = plan(deployment, Observed(), Settings(engine_image="x"))
    template = goal.apply[workload_key("tiny")]["spec"]["template"]
    container = template["spec"]["containers"][0]
    pod = replica.pod(deployment)
    ours = replica.local_command(pod, SOCKET, "/here", ["0", "1"], NO_FILE).arguments()
    on_a_port = [argument for argument in container["args"] if argument != "--host=0"]
    different = [(planned, here) for planned, here in zip(on_a_port, ours, strict=True) if planned != here]
    assert different == [("/models/model", "/here"), ("--port=8000", f"--uds={SOCKET}")]
    assert replica.environment(pod, 2, ["0"]) == {
        "A": "b",
        "OMP_NUM_THREADS": "2",
        "CUDA_VISIBLE_DEVICES": "0",
    }
    assert pod.grace == template["spec"]["terminationGracePeriodSeconds"]
    assert pod.fetch == ("pypi://tiny", (("A", "b"),))


def test_without_gpus_the_model_is_not_split_over_gpus(manifest: Any) -> None:
    pod = replica.pod(parse(manifest(resources={"gpu": 2})))
    without = set(pod.command.arguments()) - {
        "--tensor-parallel-size=2",
        "--host=0",
        "--port=8000",
        "/models/model",
    }
    ours = set(replica.local_command(pod, SOCKET, "/here", [], NO_FILE).arguments())
    assert ours == without | {f"--uds={SOCKET}", "/here"}


def test_a_local_folder_is_served_in_place(manifest: Any, tmp_path: Path) -> None:
    document = manifest()
    document["spec"]["model"]["uri"] = str(tmp_path)
    pod = replica.pod(parse(document))
    assert pod.fetch is None
    assert replica.local_command(pod, SOCKET, None, [], NO_FILE).model == str(tmp_path)


@pytest.mark.parametrize(
    ("engine", "field"),
    [
        ({"envFrom": [{"secretRef": {"name": "s"}}]}, "spec.engine.envFrom"),
        ({"files": [{"path": "/etc/a", "content": "x"}]}, "spec.engine.files"),
    ],
)
def test_what_only_a_cluster_has_is_refused(manifest: Any, engine: dict[str, Any], field: str) -> None:
    with pytest.raises(SpecError, match=field):
        replica.pod(parse(manifest(engine=engine)))


def test_a_pod_template_that_an_operator_may_forbid_is_no_obstacle_locally(manifest: Any) -> None:
    overlay = {"spec": {"hostNetwork": True, "serviceAccountName": "admin"}}

    pod = replica.pod(parse(manifest(podTemplate=overlay)))

    assert pod.command.served_model_name == "default/tiny"


def test_flags_of_the_user_are_passed_on_as_they_are(manifest: Any) -> None:
    flags = ["--seed=3", "--chat-template", "/models/model"]
    document = manifest(engine={"args": flags})

    command = replica.local_command(replica.pod(parse(document)), SOCKET, "/here", [], NO_FILE)

    assert command.arguments()[-3:] == flags


def test_arguments_that_a_pod_template_replaces_are_refused(manifest: Any) -> None:
    overlay = {"spec": {"containers": [{"name": "engine", "args": ["engine", "/other", "--port=8000"]}]}}

    with pytest.raises(SpecError, match="arguments of the container engine are replaced"):
        replica.pod(parse(manifest(podTemplate=overlay)))


def test_a_profile_of_a_cluster_is_left_out(manifest: Any) -> None:
    assert replica.pod(parse(manifest(profile="gpu-l4"))).gpus == 0


def test_adapters_are_in_a_file_and_there_is_no_admin_api(manifest: Any) -> None:
    document = manifest(adapters=[{"name": "french", "uri": "./french"}])

    pod = replica.pod(parse(document))
    arguments = replica.local_command(pod, SOCKET, "/here", [], Path("/run/adapters.json")).arguments()

    assert {"--enable-lora", "--adapters-file=/run/adapters.json"} <= set(arguments)
    assert not any("admin" in argument or "key" in argument for argument in arguments)


def test_an_adapter_on_a_claim_is_refused(manifest: Any) -> None:
    document = manifest(adapters=[{"name": "french", "uri": "pvc://claim/a"}])
    document["spec"]["model"] = {"uri": "org/name", "cache": {"claim": "claim"}}

    with pytest.raises(SpecError, match="pvc://claim/a is on a volume claim, which only a cluster has"):
        replica.pod(parse(document))
