"""The keys of engines, which the operator derives from root keys, against a real API server."""

import base64
from typing import Any

import pytest
from llm_operator.control import root_keys
from waiting import until

from engine_server.contract.engine_keys import derive_key, hash_line

SECRETS = ["fairlead-router-key", "fairlead-admin-key"]
# As the chart grants them; its own test compares.
RULES = [
    {"apiGroups": [""], "resources": ["secrets"], "resourceNames": SECRETS, "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["secrets"], "resourceNames": SECRETS, "verbs": ["patch"]},
]


def empty_secret(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}}


def test_new_root_keys_reach_the_engines_without_a_new_pod_template(
    world: Any, start_operator: Any, manifest: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(root_keys, "POLL_SECONDS", 0.1)
    home = world.namespace
    account = world.service_account()
    world.grant("operator-keys", home, RULES)
    world.apply(*map(empty_secret, SECRETS))
    operator = start_operator(
        account,
        f"--namespace={home}",
        f"--lease-namespace={home}",
        *(f"--{role}-key-secret=fairlead-{role}-key" for role in ("router", "admin")),
    )
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
