"""The events of watches."""

from pathlib import Path
from typing import Any

import kopf
import pytest
import yaml
from llm_operator.control.cluster import load_configuration
from llm_operator.control.queue import WorkQueue
from llm_operator.control.resources import CHILDREN, LLMDEPLOYMENTS
from llm_operator.control.turns import Priority
from llm_operator.control.watching import handlers
from llm_operator.control.watching.handlers import on_event
from llm_operator.control.watching.pages import Pages
from llm_operator.control.watching.store import Ref, Store

from engine_server.contract.cluster.api import Key

SERVICES = CHILDREN["v1", "Service"]


def manifest(name: str, version: int) -> dict[str, Any]:
    """Return an LLMDeployment, or a child of the one with this name."""
    labels = {"fairlead.dev/llmdeployment": name}
    metadata = {"name": name, "namespace": "default", "resourceVersion": str(version), "labels": labels}
    return {"metadata": metadata, "spec": {"model": {"uri": "a/b"}}}


async def test_an_edit_is_taken_before_the_changes_of_children_and_before_a_relist() -> None:
    store, queue = Store(), WorkQueue()
    queue.add(Key("default", "relisted"), Priority.RELIST)

    await on_event(SERVICES, store, queue)(event={"type": "MODIFIED", "object": manifest("child", 1)})
    await on_event(LLMDEPLOYMENTS, store, queue)(event={"type": "MODIFIED", "object": manifest("edited", 2)})

    assert [(await queue.take()).name for _ in range(3)] == ["edited", "child", "relisted"]


def test_kopf_copies_no_object_to_compare_it_with_a_former_state() -> None:
    storage = handlers.settings(60).persistence.diffbase_storage
    body = kopf.Body({"metadata": {"name": "a", "labels": {"a": "b"}}, "spec": {"large": [{}] * 1000}})  # type: ignore[typeddict-item]

    assert storage.build(body=body) == {}
    assert storage.fetch(body=body) is None


async def test_a_deleted_child_leaves_the_store_and_wakes_its_llmdeployment() -> None:
    store, queue = Store(), WorkQueue()
    store.put(SERVICES, manifest("a", 1))

    await on_event(SERVICES, store, queue)(event={"type": "DELETED", "object": manifest("a", 2)})

    assert await queue.take() == Key("default", "a")
    assert store.version(Ref(SERVICES, "default", "a")) == 0


async def test_credentials_are_read_again_when_kopf_asks_for_them_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handlers, "LOGIN_PAUSE_SECONDS", 0)
    token, kubeconfig = tmp_path / "token", tmp_path / "kubeconfig"
    config = {
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "clusters": [{"name": "test", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "test", "user": {"tokenFile": str(token)}}],
    }
    kubeconfig.write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    token.write_text("first")
    log_in = handlers.login(await load_configuration(), Pages(), ())

    sent = []
    for content in ("first", "second"):
        token.write_text(content)
        access = await log_in()
        sent.append(access.aiohttp_session.headers["Authorization"])
        await access.aiohttp_session.close()

    assert sent == ["Bearer first", "Bearer second"]
