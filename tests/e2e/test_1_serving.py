"""Install, apply, wait and request, in this order; the numbers of the files order them too."""

from typing import Any

import openai
import pytest

from engine_server.modeling.native.build import LEVELS

pytestmark = pytest.mark.e2e

NAMESPACE = "team-a"
QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]


def test_install_starts_operator_and_routers(cluster: Any, release: None) -> None:
    for component in ("operator", "router"):
        deployment = cluster.get("deployment", f"fairlead-{component}", "-n", "fairlead-system")
        assert deployment["status"]["availableReplicas"] == deployment["spec"]["replicas"]
    assert "llmd" in cluster.kubectl("api-resources", "--api-group=fairlead.dev")


def test_router_without_models_reports_that_there_are_none(
    cluster: Any, release: None, client: openai.OpenAI
) -> None:
    assert client.models.list().data == []
    with pytest.raises(openai.NotFoundError, match="smollm2"):
        client.chat.completions.create(model="smollm2", messages=QUESTION)


def test_applied_deployment_becomes_ready(cluster: Any, smollm2: str) -> None:
    deployment = cluster.llmd(smollm2, NAMESPACE)
    assert deployment["status"]["readyReplicas"] == 2
    ready = cluster.condition(smollm2, NAMESPACE, "Ready")
    assert ready["status"] == "True"
    assert ready["observedGeneration"] == deployment["metadata"]["generation"]


def test_kubectl_get_shows_model_replicas_readiness_and_age(cluster: Any, smollm2: str) -> None:
    header, row = cluster.kubectl("get", "llmd", smollm2, "-n", NAMESPACE).splitlines()
    columns = dict(zip(header.split(), row.split(), strict=True))
    assert {"NAME", "MODEL", "REPLICAS", "READY", "AGE"} <= columns.keys()
    assert columns["NAME"] == "smollm2"
    assert columns["MODEL"] == "pvc://models/smollm2"
    assert (columns["REPLICAS"], columns["READY"]) == ("2", "2")
    table = cluster.kubectl("get", "llmd,deploy,pods", "-n", NAMESPACE, "-o", "wide")
    cluster.show("kubectl get llmd,deploy,pods -o wide", table)


def test_router_answers_with_the_real_model(
    cluster: Any, smollm2: str, client: openai.OpenAI, address: str
) -> None:
    assert [model.id for model in client.models.list().data] == ["smollm2"]
    answer = client.chat.completions.create(model="smollm2", messages=QUESTION, temperature=0, max_tokens=32)
    text = answer.choices[0].message.content
    assert text is not None
    assert "Paris" in text
    assert answer.usage is not None
    assert answer.usage.completion_tokens <= 32
    cluster.show(f"POST {address}/v1/chat/completions", f"{QUESTION[0]['content']}\n{text}")

    chunks = list(
        client.chat.completions.create(
            model="smollm2", messages=QUESTION, temperature=0, max_tokens=32, stream=True
        )
    )
    assert len(chunks) > 5
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text


def test_helm_test_sends_a_request_and_leaves_no_pod(cluster: Any, smollm2: str) -> None:
    cluster.run("helm", "test", "fairlead", "-n", "fairlead-system")
    assert cluster.names("pods", "fairlead-system", "app.kubernetes.io/component=test") == []


def test_image_contains_the_cpu_kernels(cluster: Any, smollm2: str) -> None:
    pod = cluster.pods(smollm2, NAMESPACE)[0]
    names = (
        "from engine_server.modeling.native import build\n"
        "print(*sorted(file.name for file in build.FOLDER.glob('*.so')))"
    )
    machine = cluster.get("node", pod["spec"]["nodeName"])["status"]["nodeInfo"]["architecture"]
    found = cluster.kubectl(
        "exec", pod["metadata"]["name"], "-n", NAMESPACE, "-c", "engine", "--", "python", "-c", names
    )
    expected = sorted(f"kernels-{level}.so" for level in LEVELS) if machine == "amd64" else []
    assert found.split() == expected


def test_different_prompts_are_spread_over_every_replica(
    cluster: Any, smollm2: str, client: openai.OpenAI
) -> None:
    for number in range(20):
        client.completions.create(model=smollm2, prompt=f"{number} ships are", max_tokens=1)
    for pod in cluster.pods(smollm2, NAMESPACE):
        name = pod["metadata"]["name"]
        assert cluster.metric(name, NAMESPACE, "vllm:request_success_total") > 0, name


def test_invalid_requests_get_client_errors(cluster: Any, smollm2: str, client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(model="smollm2", messages=QUESTION, temperature=-1)
    with pytest.raises(openai.BadRequestError, match="2048"):
        client.completions.create(model="smollm2", prompt="sea " * 3000)


def test_restart_of_the_routers_fails_no_request(cluster: Any, smollm2: str, load: Any) -> None:
    router = ["deploy/fairlead-router", "-n", "fairlead-system"]
    with load() as running:
        cluster.kubectl("rollout", "restart", *router)
        cluster.kubectl("rollout", "status", *router, "--timeout=120s")
        running.more(10)
    assert running.failures == []
