"""The root keys that the operator derives engines' keys from, in the Secrets of a real API server."""

import asyncio
import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from llm_operator.control import root_keys
from llm_operator.control.cluster import Cluster
from llm_operator.control.root_keys import KeySecrets, RootKeys
from waiting import until_async

from engine_server.contract.cluster.engine_keys import derive_key
from engine_server.server.http.api_keys import ApiKeys


def secret(name: str, content: str | None) -> dict[str, Any]:
    """Return a Secret as the chart makes it, without data, or with the entry."""
    metadata = {"name": name}
    data = {} if content is None else {"data": {"keys": base64.b64encode(content.encode()).decode()}}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, **data}


def content_of(world: Any, name: str) -> bytes:
    """Return the keys in a Secret; none without the entry."""
    return base64.b64decode(world.get("secret", name).get("data", {}).get("keys", ""))


@pytest.fixture
def keys_of(
    world: Any, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str | None, str | None], RootKeys]:
    """Return a function that creates the two Secrets and returns the keys in them, which are not loaded yet."""
    monkeypatch.setattr(root_keys, "POLL_SECONDS", 0.01)

    def keys_of(router: str | None, admin: str | None) -> RootKeys:
        world.delete_all("secret")
        world.apply(secret("router", router), secret("admin", admin))
        return RootKeys(cluster, world.namespace, KeySecrets("router", "admin"))

    return keys_of


def accepted(lines: tuple[str, ...], folder: Path) -> ApiKeys:
    """Return the keys that an engine accepts with these lines in its key file."""
    file = folder / "lines"
    file.write_text("\n".join(lines))
    return ApiKeys([], file)


async def test_engines_accept_the_keys_of_their_own_deployment_alone(keys_of: Any, tmp_path: Path) -> None:
    keys = keys_of("router root\n", "admin root\n")
    await keys.load()

    router, admin = keys.hashes("uid-1")

    engine = accepted(router, tmp_path)
    assert engine.accept([derive_key(b"router root", "uid-1").encode()])
    assert not engine.accept([derive_key(b"router root", "uid-2").encode()])
    assert not engine.accept([derive_key(b"admin root", "uid-1").encode()])
    assert accepted(admin, tmp_path).accept([derive_key(b"admin root", "uid-1").encode()])


async def test_engines_accept_all_root_keys_of_a_secret_so_that_the_router_can_change_to_the_next(
    keys_of: Any, tmp_path: Path
) -> None:
    keys = keys_of("old root\nnew root\n", "admin root")
    await keys.load()

    engine = accepted(keys.hashes("uid").router, tmp_path)

    for root in (b"old root", b"new root"):
        assert engine.accept([derive_key(root, "uid").encode()])


async def test_secrets_without_the_entry_get_different_random_keys_once(world: Any, keys_of: Any) -> None:
    keys = keys_of(None, None)

    await keys.load()

    router, admin = content_of(world, "router"), content_of(world, "admin")
    assert len({router, admin}) == 2 and min(len(router), len(admin)) >= 48
    again = RootKeys(keys.cluster, world.namespace, keys.names)
    await again.load()
    assert again.hashes("uid") == keys.hashes("uid")
    assert content_of(world, "router") == router


async def test_waits_for_a_secret_that_does_not_exist_or_has_no_key(
    world: Any, keys_of: Any, caplog: pytest.LogCaptureFixture
) -> None:
    keys = keys_of(" \n", "admin root")
    world.delete("secret", "admin")

    loading = asyncio.create_task(keys.load())
    await until_async(lambda: f"{world.namespace}/router: it has no key" in caplog.text)
    await until_async(lambda: 'secrets "admin" not found' in caplog.text)
    world.apply(secret("router", "router root"), secret("admin", "admin root"))

    await asyncio.wait_for(loading, 60)
    assert keys.hashes("uid").router
    assert "router root" not in caplog.text


async def test_follows_changes_and_restores_an_entry_that_was_removed(
    world: Any, keys_of: Any, caplog: pytest.LogCaptureFixture
) -> None:
    keys, changed = keys_of("router root", "admin root"), asyncio.Event()
    await keys.load()
    before = keys.hashes("uid")
    following = asyncio.create_task(keys.follow(changed.set))

    world.patch("secret", "router", {"data": {"keys": None}})
    await until_async(lambda: content_of(world, "router") == b"router root")
    assert keys.hashes("uid") == before and not changed.is_set()
    world.apply(secret("router", "another root"))

    await asyncio.wait_for(changed.wait(), 60)
    assert keys.hashes("uid").router != before.router
    assert keys.hashes("uid").admin == before.admin
    assert "another root" not in caplog.text
    following.cancel()


async def test_the_admin_key_alone_is_derived_from_its_first_root(keys_of: Any) -> None:
    keys = keys_of(None, "new\nold\n")
    keys.names = KeySecrets(None, "admin")
    await keys.load()

    assert keys.admin_key("uid-1") == derive_key(b"new", "uid-1")
    assert keys.hashes("uid-1").router == ()
    assert len(keys.hashes("uid-1").admin) == 2


async def test_nothing_waits_for_an_admin_key_that_cannot_be_read(keys_of: Any) -> None:
    keys = keys_of(None, None)
    keys.names = KeySecrets(None, "missing")
    await keys.load()

    assert keys.admin_key("uid-1") == ""
    assert keys.hashes("uid-1") == ((), ())
