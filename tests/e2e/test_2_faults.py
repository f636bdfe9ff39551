"""Faults on a cluster, and how they are reported."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from cluster_manifests import llmdeployment
from waiting import until

pytestmark = pytest.mark.e2e

NAMESPACE, OTHER = "team-a", "team-b"


def manifest(name: str, **spec: Any) -> str:
    return json.dumps(llmdeployment(name, **spec))


@pytest.fixture
def applied(cluster: Any, release: None) -> Any:
    """Apply manifests and delete them at the end."""
    made: list[tuple[str, str]] = []

    def apply(name: str, namespace: str, **spec: Any) -> None:
        made.append((name, namespace))
        cluster.apply(namespace, llmdeployment(name, **spec))

    yield apply
    for name, namespace in made:
        cluster.kubectl("delete", "llmd", name, "-n", namespace)


def stream(client: openai.OpenAI) -> str:
    """Stream a long answer and return how it ended."""
    try:
        chunks = client.completions.create(
            model="smollm2",
            prompt="Once upon a time",
            max_tokens=400,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        finish = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    except openai.APIError as error:
        return f"error: {error.message}"
    return str(finish[-1])


def test_killed_engine_core_is_restarted_and_its_streams_continue_elsewhere(
    cluster: Any, smollm2: str, client: openai.OpenAI
) -> None:
    def running(pod: str) -> float:
        count: float = cluster.metric(pod, NAMESPACE, "vllm:num_requests_running")
        return count

    names = [pod["metadata"]["name"] for pod in cluster.pods(smollm2, NAMESPACE)]
    with ThreadPoolExecutor(6) as pool:
        streams = [pool.submit(stream, client) for _ in range(6)]
        until(lambda: any(running(name) for name in names), "streams on a replica")
        victim = max(names, key=running)
        is_ready_again = cluster.kill_core(victim, NAMESPACE)
        ends = [future.result() for future in streams]
    assert ends == ["length"] * 6

    with ThreadPoolExecutor(4) as pool:
        answers = list(
            pool.map(
                lambda n: client.completions.create(model="smollm2", prompt=f"{n}", max_tokens=2), range(100)
            )
        )
    assert len(answers) == 100

    until(is_ready_again, "the kubelet restarts the engine, and it is ready again")
    cluster.wait_replicas(smollm2, NAMESPACE, 2)
    cluster.wait_ready(smollm2, NAMESPACE)


def test_unknown_field_is_refused(cluster: Any, release: None) -> None:
    words = cluster.refusal("apply", "-n", NAMESPACE, "-f", "-", input=manifest("typo", replica=2))
    assert "spec.replica" in words


def test_negative_replicas_are_refused(cluster: Any, release: None) -> None:
    words = cluster.refusal("apply", "-n", NAMESPACE, "-f", "-", input=manifest("negative", replicas=-1))
    assert "spec.replicas" in words


def test_engine_flag_owned_by_the_operator_is_refused(cluster: Any, release: None) -> None:
    spec = {"engine": {"args": ["--port=1"]}}
    words = cluster.refusal("apply", "-n", NAMESPACE, "-f", "-", input=manifest("port", **spec))
    assert "--port" in words


@pytest.mark.parametrize(
    ("name", "uri", "words"),
    [
        ("no-claim", "pvc://nowhere/smollm2", ["no PersistentVolumeClaim nowhere"]),
        ("no-folder", "pvc://models/nothing", ["config.json"]),
        ("no-package", "pypi://there-is-no-such-model", ["there-is-no-such-model"]),
    ],
)
def test_reports_a_missing_model(cluster: Any, applied: Any, name: str, uri: str, words: list[str]) -> None:
    applied(name, NAMESPACE, model={"uri": uri})

    def told() -> str:
        ready = cluster.condition(name, NAMESPACE, "Ready")
        message: str = ready.get("message", "")
        return message if all(word in message for word in words) and ready["status"] == "False" else ""

    message = until(told, f"Ready says {words}; it says {cluster.condition(name, NAMESPACE, 'Ready')}")
    degraded = cluster.condition(name, NAMESPACE, "Degraded")
    assert degraded["status"] == "True"
    cluster.show(f"{uri}: the condition's message", message)


@pytest.fixture(scope="module")
def namesake(cluster: Any, release: None, gpu_node: str) -> Iterator[str]:
    """Apply a deployment with the sample's name in another namespace, on a GPU. Return its name."""
    cluster.apply(OTHER, llmdeployment("smollm2", resources={"gpu": 1}))
    cluster.wait_replicas("smollm2", OTHER, 1)
    yield "smollm2"
    cluster.kubectl("delete", "llmd", "smollm2", "-n", OTHER)


def test_name_in_two_namespaces_reaches_both(
    cluster: Any, smollm2: str, namesake: str, client: openai.OpenAI
) -> None:
    until(
        lambda: cluster.condition(namesake, OTHER, "NameTaken").get("status") == "True",
        "the later one says that its name is taken",
    )
    assert cluster.condition(smollm2, NAMESPACE, "NameTaken").get("status") != "True"
    for name in (smollm2, f"{NAMESPACE}/{smollm2}", f"{OTHER}/{namesake}"):
        reply = client.completions.create(model=name, prompt="The sea is", max_tokens=4)
        assert reply.choices[0].text


def test_gpu_pod_is_scheduled_on_the_gpu_node(
    cluster: Any, namesake: str, gpu_node: str, client: openai.OpenAI
) -> None:
    (pod,) = cluster.pods(namesake, OTHER)
    assert pod["spec"]["nodeName"] == gpu_node
    assert pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"
    answer = client.completions.create(model=f"{OTHER}/{namesake}", prompt="The sea is", max_tokens=4)
    assert answer.choices[0].text


def test_too_many_gpus_are_reported_as_unschedulable(cluster: Any, applied: Any, gpu_node: str) -> None:
    applied("too-many", OTHER, resources={"gpu": 8})
    until(
        lambda: "nvidia.com/gpu" in cluster.condition("too-many", OTHER, "Ready").get("message", ""),
        "Ready says that no node has so many GPUs",
    )
