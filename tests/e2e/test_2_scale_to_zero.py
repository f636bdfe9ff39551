"""Deployments at zero replicas, which requests wake, and scaling under load."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from waiting import until

pytestmark = pytest.mark.e2e

NAMESPACE = "team-a"
# Models that are woken together.
MODELS = [f"sleeper-{number}" for number in range(3)]


# The operator scales nothing down while a test waits.
UNHURRIED = {"scaleDownDelaySeconds": 3600, "idleSeconds": 3600}
# In seconds, the shortest.
IDLE = {"stableWindowSeconds": 1, "panicWindowSeconds": 1, "idleSeconds": 1}


def manifest(name: str, replicas: int, autoscaling: dict[str, int]) -> str:
    """Return a small deployment that may be scaled to zero."""
    spec = {
        "model": {"uri": "pvc://models/smollm2"},
        "engine": {"maxModelLen": 512, "env": [{"name": "OMP_NUM_THREADS", "value": "1"}]},
        "replicas": replicas,
        "autoscaling": {"min": 0, "max": 5, **autoscaling},
        "resources": {"cpu": "50m", "memory": "2Gi"},
    }
    kind = {"apiVersion": "fairlead.dev/v1alpha1", "kind": "LLMDeployment"}
    return json.dumps({**kind, "metadata": {"name": name}, "spec": spec})


@pytest.fixture
def applied(cluster: Any, release: None) -> Iterator[Any]:
    """Apply deployments and delete them at the end."""
    names: list[str] = []

    def apply(name: str, replicas: int, autoscaling: dict[str, int] = UNHURRIED) -> None:
        names.append(name)
        cluster.kubectl("apply", "-n", NAMESPACE, "-f", "-", input=manifest(name, replicas, autoscaling))

    yield apply
    for name in names:
        cluster.kubectl("delete", "llmd", name, "-n", NAMESPACE)


def ask(client: openai.OpenAI, model: str) -> str:
    """Return the text of a short answer."""
    text: str = client.completions.create(model=model, prompt="The sea is", max_tokens=2).choices[0].text
    return text


def test_no_request_fails_while_replicas_go_from_one_to_three_to_one_to_zero_and_back(
    cluster: Any, applied: Any, served: Any
) -> None:
    applied("elastic", replicas=1)
    cluster.wait_replicas("elastic", NAMESPACE, 1, 600)

    def scale(count: int) -> None:
        cluster.kubectl("scale", "llmd/elastic", "-n", NAMESPACE, f"--replicas={count}")

    with served("scale 1-3-1-0-1", model="elastic"):
        for count in (3, 1):
            scale(count)
            cluster.wait_replicas("elastic", NAMESPACE, count, 600)
        last = cluster.engines("elastic", NAMESPACE)
        scale(0)
        until(lambda: not last & cluster.engines("elastic", NAMESPACE), "the last replica is gone", 600)
        cluster.wait_replicas("elastic", NAMESPACE, 1, 600)  # requests have woken it


def test_models_at_zero_that_get_requests_together_all_answer(
    cluster: Any, applied: Any, client: openai.OpenAI
) -> None:
    for name in MODELS:
        applied(name, replicas=0)
    until(
        lambda: {*MODELS} <= {model.id for model in client.models.list().data},
        "the router lists all models",
    )
    begun = time.monotonic()

    def wake(name: str) -> float:
        assert ask(client, name)
        return time.monotonic() - begun

    with ThreadPoolExecutor(len(MODELS)) as pool:
        seconds = sorted(pool.map(wake, MODELS))

    replicas = [cluster.llmd(name, NAMESPACE)["spec"]["replicas"] for name in MODELS]
    assert replicas == [1] * len(MODELS)
    cluster.show("three models from zero", ", ".join(f"{second:.1f} s" for second in seconds))


def scalings(cluster: Any, name: str) -> list[str]:
    """Return the operator's log lines about changes of a deployment's replicas."""
    log = cluster.kubectl("logs", "-n", "fairlead-system", "deploy/fairlead-operator", "--tail=-1")
    return [line for line in log.splitlines() if f"{NAMESPACE}/{name}: scaled" in line]


def test_an_idle_deployment_returns_to_zero_and_the_next_request_wakes_it(
    cluster: Any, applied: Any, client: openai.OpenAI
) -> None:
    applied("dozer", replicas=0, autoscaling=IDLE)
    until(lambda: "dozer" in {model.id for model in client.models.list().data}, "the router lists it")

    before = scalings(cluster, "dozer")
    assert ask(client, "dozer")
    cluster.wait_replicas("dozer", NAMESPACE, 0, 300)
    assert cluster.condition("dozer", NAMESPACE, "Ready")["reason"] == "ScaledToZero"
    (line,) = scalings(cluster, "dozer")[len(before) :]
    assert "(Idle)" in line
    cluster.show("to zero by idle time", line)

    assert ask(client, "dozer")


def test_a_deployment_that_is_stopped_answers_503_immediately(
    cluster: Any, applied: Any, client: openai.OpenAI
) -> None:
    applied("stopped", replicas=0)
    cluster.kubectl(
        "patch", "llmd", "stopped", "-n", NAMESPACE, "--type=merge", "-p", '{"spec":{"autoscaling":null}}'
    )
    until(
        lambda: cluster.condition("stopped", NAMESPACE, "Ready").get("reason") == "Stopped",
        "the condition says that it is stopped",
    )
    with pytest.raises(openai.InternalServerError, match="is ready: Stopped"):
        ask(client, "stopped")
