"""Callers' keys, whose limits two routers share: they find each other by the DNS of the cluster."""

import itertools
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import openai
import pytest
from waiting import until

pytestmark = pytest.mark.e2e

SYSTEM, NAMESPACE = "fairlead-system", "team-a"
ROUTERS = "app.kubernetes.io/component=router"
# The names of the callers, and their flags of `fairlead router key`.
CALLERS = {"single": ["--concurrency=1"], "ample": ["--requests-per-minute=1000000"]}


@pytest.fixture(scope="module")
def keys(
    cluster: Any, release: None, helm: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """Give the routers callers' keys for the tests of this module. Return them by the callers' names."""
    file = tmp_path_factory.mktemp("keys") / "keys.yaml"
    command = [Path(sys.executable).with_name("fairlead"), "router", "key"]
    made = {
        name: subprocess.check_output([*command, name, *flags, f"--append={file}"], text=True).strip()
        for name, flags in CALLERS.items()
    }
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "callers"}}
    cluster.apply(SYSTEM, {**secret, "stringData": {file.name: file.read_text()}})
    helm("upgrade", "router.keysSecret.name=callers")
    yield made
    helm("upgrade")
    cluster.kubectl("delete", "secret", "callers", "-n", SYSTEM)


@pytest.fixture
def client(address: str, keys: dict[str, str]) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{address}/v1", api_key=keys["ample"], max_retries=0, timeout=120) as client:
        yield client


def admits(client: openai.OpenAI) -> bool:
    """Return False if the request is beyond a limit of its key."""
    try:
        client.completions.create(model="smollm2", prompt="The sea is", max_tokens=1)
    except openai.RateLimitError:
        return False
    return True


def check_that_limit_is_shared(one: openai.OpenAI, other: openai.OpenAI) -> None:
    """Assert that a stream of one router fills the limit of its key at the other."""
    until(lambda: admits(other), "nothing of the key is in flight")
    with one.completions.create(
        model="smollm2",
        prompt="Once upon a time",
        max_tokens=900,
        stream=True,
        extra_body={"ignore_eos": True},
    ):
        until(lambda: not admits(other), "the stream of one router counts at the other")
    until(lambda: admits(other), "the end of the stream counts too")


def test_router_refuses_what_another_router_has_admitted(
    cluster: Any, smollm2: str, keys: dict[str, str]
) -> None:
    until(lambda: len(cluster.names("pods", SYSTEM, ROUTERS)) == 2, "the former routers are gone")
    pods = [name.removeprefix("pod/") for name in cluster.names("pods", SYSTEM, ROUTERS)]
    with ExitStack() as stack:
        clients = [
            openai.OpenAI(
                base_url=f"{stack.enter_context(cluster.forward(pod, SYSTEM, 8080))}/v1",
                api_key=keys["single"],
                max_retries=0,
                timeout=120,
            )
            for pod in pods
        ]
        for one, other in itertools.permutations(clients):
            check_that_limit_is_shared(one, other)


def test_restart_of_routers_that_share_limits_fails_no_request(
    cluster: Any, smollm2: str, served: Any
) -> None:
    router = ("deploy/fairlead-router", "-n", SYSTEM)
    with served("restart of routers with callers' keys"):
        cluster.kubectl("rollout", "restart", *router)
        cluster.kubectl("rollout", "status", *router, "--timeout=180s")
