"""Deployments at zero replicas, which requests wake, and scaling under load."""

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import openai
import pytest
from waiting import until

pytestmark = pytest.mark.e2e

NAMESPACE = "team-a"
REQUESTS = 2000
THREADS = 8
# Models that are woken together.
MODELS = [f"sleeper-{number}" for number in range(5)]


# The operator scales nothing down while a test waits.
UNHURRIED = {"scaleDownDelaySeconds": 3600, "idleSeconds": 3600}
# In seconds.
IDLE = {"stableWindowSeconds": 10, "scaleDownDelaySeconds": 10, "idleSeconds": 20}


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


@pytest.fixture
def patient(client: openai.OpenAI) -> openai.OpenAI:
    """A client that waits for a cold start on a busy machine."""
    return client.with_options(timeout=600.0)


def ask(client: openai.OpenAI, model: str) -> str:
    """Return the text of a short answer."""
    text: str = client.completions.create(model=model, prompt="The sea is", max_tokens=2).choices[0].text
    return text


class Load:
    """Requests from several threads until so many were answered. Failures are recorded as text."""

    def __init__(self, client: openai.OpenAI, model: str) -> None:
        self.answered = 0
        self.failures: list[str] = []
        self._client = client
        self._model = model
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def run(self) -> None:
        while not self._stopped.is_set():
            try:
                assert ask(self._client, self._model)
            except (openai.OpenAIError, AssertionError) as error:
                self.failures.append(f"{type(error).__name__}: {error} {error.__cause__!r}")
            with self._lock:
                self.answered += 1

    def reach(self, count: int) -> None:
        """Wait until `count` requests have ended."""
        until(lambda: self.answered >= count, f"{count} answers; failures: {self.failures}", 900)

    def stop(self) -> None:
        self._stopped.set()


@contextmanager
def running(load: Load) -> Iterator[None]:
    """Run a load in threads."""
    with ThreadPoolExecutor(THREADS) as pool:
        for _ in range(THREADS):
            pool.submit(load.run)
        try:
            yield
        finally:
            load.stop()


def test_no_request_fails_while_replicas_go_from_three_to_one_to_zero_to_three(
    cluster: Any, applied: Any, patient: openai.OpenAI
) -> None:
    applied("elastic", replicas=3)
    cluster.wait_replicas("elastic", NAMESPACE, 3, 600)
    load = Load(patient, "elastic")

    def scale(count: int) -> None:
        cluster.kubectl("scale", "llmd/elastic", "-n", NAMESPACE, f"--replicas={count}")

    with running(load):
        load.reach(REQUESTS // 5)
        scale(1)
        load.reach(2 * REQUESTS // 5)
        scale(0)  # requests wake it
        load.reach(3 * REQUESTS // 5)
        scale(3)
        load.reach(REQUESTS)

    assert load.failures == []
    cluster.show("scale 3-1-0-3 under load", f"{load.answered} requests, {len(load.failures)} failed")


def test_models_at_zero_that_get_requests_together_all_answer(
    cluster: Any, applied: Any, patient: openai.OpenAI
) -> None:
    for name in MODELS:
        applied(name, replicas=0)
    until(
        lambda: {*MODELS} <= {model.id for model in patient.models.list().data},
        "the router lists all models",
    )
    begun = time.monotonic()

    def wake(name: str) -> float:
        assert ask(patient, name)
        return time.monotonic() - begun

    with ThreadPoolExecutor(len(MODELS)) as pool:
        seconds = sorted(pool.map(wake, MODELS))

    replicas = [cluster.get("llmd", name, "-n", NAMESPACE)["spec"]["replicas"] for name in MODELS]
    assert replicas == [1] * len(MODELS)
    cluster.show("five models from zero", ", ".join(f"{second:.1f} s" for second in seconds))


def test_an_idle_deployment_returns_to_zero_and_the_next_request_wakes_it(
    cluster: Any, applied: Any, patient: openai.OpenAI
) -> None:
    applied("dozer", replicas=0, autoscaling=IDLE)
    until(lambda: "dozer" in {model.id for model in patient.models.list().data}, "the router lists it")

    for _ in range(2):
        assert ask(patient, "dozer")
        cluster.wait_replicas("dozer", NAMESPACE, 0, 300)
        assert cluster.condition("dozer", NAMESPACE, "Ready")["reason"] == "ScaledToZero"

    log = cluster.kubectl("logs", "-n", "fairlead-system", "deploy/fairlead-operator", "--tail=-1")
    lines = [line for line in log.splitlines() if f"{NAMESPACE}/dozer: scaled" in line]
    assert len(lines) == 2 and all("(Idle)" in line for line in lines)
    cluster.show("to zero by idle time, twice", "\n".join(lines))


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
    with pytest.raises(openai.InternalServerError, match=r"spec\.replicas is 0"):
        ask(client, "stopped")
