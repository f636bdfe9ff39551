"""The keys of engines, which the operator derives from root keys, against a real API server."""

import base64
from collections.abc import Callable
from typing import Any

import pytest
from llm_operator.control import root_keys
from waiting import until

from engine_server.contract.cluster.engine_keys import derive_key, hash_line

SECRETS = ["fairlead-router-key", "fairlead-admin-key"]
ROUTER_FLAG = "--api-key-file=/etc/fairlead/keys/router"
# As the chart grants them; its own test compares.
RULES = [
    {"apiGroups": [""], "resources": ["secrets"], "resourceNames": SECRETS, "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["secrets"], "resourceNames": SECRETS, "verbs": ["patch"]},
]


def empty_secret(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}}


@pytest.fixture
def start(world: Any, start_operator: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return a function that starts an operator which may read the Secrets, with further flags."""
    monkeypatch.setattr(root_keys, "POLL_SECONDS", 0.1)
    home = world.namespace
    account = world.service_account()
    world.grant("operator-keys", home, RULES)
    world.apply(*map(empty_secret, SECRETS))

    def start(*flags: str) -> Any:
        own = (f"--namespace={home}", f"--lease-namespace={home}", "--admin-key-secret=fairlead-admin-key")
        return start_operator(account, *own, *flags)

    return start


def test_an_operator_that_starts_with_keys_changes_no_engine_until_its_spec_changes(
    world: Any, start: Any, manifest: Any, name: str
) -> None:
    def engine() -> dict[str, Any]:
        return world.get("deployment", f"{name}-engine")["spec"]["template"]["spec"]["containers"][0]

    without_keys = start()
    world.apply(manifest(name))
    before = until(lambda: world.get("deployment", f"{name}-engine"))
    without_keys.stop()

    start("--router-key-secret=fairlead-router-key")
    # The keys are there before any engine asks for them.
    until(lambda: world.get("configmap", f"{name}-keys"))
    world.apply(manifest(name, replicas=3))
    after = until(lambda: scaled(world, name, 3))
    assert after["spec"]["template"] == before["spec"]["template"]

    world.apply(manifest(name, replicas=3, engine={"maxModelLen": 512}))
    until(lambda: ROUTER_FLAG in engine()["args"])


@pytest.mark.more
def test_an_operator_that_starts_without_keys_takes_them_from_engines_whose_spec_is_invalid_by_now(
    world: Any, start: Any, manifest: Any, name: str
) -> None:
    def workload() -> dict[str, Any]:
        return world.get("deployment", f"{name}-engine")

    with_keys = start("--router-key-secret=fairlead-router-key")
    world.apply(manifest(name, replicas=2))
    before = until(workload)
    assert ROUTER_FLAG in before["spec"]["template"]["spec"]["containers"][0]["args"]
    invalid = {"engine": {"env": [{"name": "FAIRLEAD_PORT", "value": "1"}]}}
    world.apply(manifest(name, replicas=2, **invalid))
    until(lambda: world.degraded(name, "InvalidSpec"))
    with_keys.stop()

    start()
    after = until(lambda: without_flag(workload()))

    assert after["spec"]["replicas"] == 2
    assert after["metadata"]["ownerReferences"] == before["metadata"]["ownerReferences"]
    assert world.degraded(name, "InvalidSpec")
    # The spec is valid again: no engine is replaced.
    world.apply(manifest(name, replicas=3))
    assert until(lambda: scaled(world, name, 3))["spec"]["template"] == after["spec"]["template"]


def without_flag(workload: dict[str, Any]) -> dict[str, Any] | None:
    (engine,) = workload["spec"]["template"]["spec"]["containers"]
    return None if ROUTER_FLAG in engine["args"] else workload


def scaled(world: Any, name: str, replicas: int) -> dict[str, Any] | None:
    workload = world.get("deployment", f"{name}-engine")
    assert isinstance(workload, dict)
    return workload if workload["spec"]["replicas"] == replicas else None


def test_new_root_keys_reach_the_engines_without_a_new_pod_template(
    world: Any, start: Any, manifest: Any
) -> None:
    operator = start("--router-key-secret=fairlead-router-key")
    world.apply(manifest("model"))
    before = until(lambda: world.get("deployment", "model-engine"))
    uid = world.get("llmd", "model")["metadata"]["uid"]
    old, admin = (base64.b64decode(world.get("secret", name)["data"]["keys"]) for name in SECRETS)
    hashes = world.get("configmap", "model-keys")["data"]
    assert hashes == {
        "router": f"{hash_line(derive_key(old, uid))}\n",
        "admin": f"{hash_line(derive_key(admin, uid))}\n",
    }

    both = base64.b64encode(old + b"\nnew root\n").decode()
    world.apply(empty_secret(SECRETS[0]) | {"data": {"keys": both}})

    new = hash_line(derive_key(b"new root", uid))
    until(lambda: world.get("configmap", "model-keys")["data"]["router"] == f"{hashes['router']}{new}\n")
    after = world.get("deployment", "model-engine")
    assert after["spec"] == before["spec"]
    assert operator.logged("the root keys have changed")
    assert "new root" not in operator.log and old.decode() not in operator.log
