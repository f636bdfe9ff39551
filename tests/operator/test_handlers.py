"""The events of watches."""

from pathlib import Path
from typing import Any

import kopf
import pytest
import yaml
from llm_operator.control.cluster import Access, load_configuration
from llm_operator.control.queue import WorkQueue
from llm_operator.control.turns import Priority
from llm_operator.control.watching import kopf_settings, sessions
from llm_operator.control.watching.pages import Pages
from llm_operator.control.watching.sessions import Sessions
from llm_operator.control.watching.store import Ref, Store
from llm_operator.handlers import Memo
from llm_operator.kinds import CHILDREN, LLMDEPLOYMENTS, Resource

from engine_server.contract.cluster.api import Key

SERVICES = CHILDREN["v1", "Service"]


def manifest(name: str, version: int) -> dict[str, Any]:
    """Return an LLMDeployment, or a child of the one with this name."""
    labels = {"fairlead.dev/llmdeployment": name}
    metadata = {"name": name, "namespace": "default", "resourceVersion": str(version), "labels": labels}
    return {"metadata": metadata, "spec": {"model": {"uri": "a/b"}}}


async def send(resource: Resource, event: dict[str, Any], store: Store, queue: WorkQueue) -> None:
    """Call kopf's handler for an event of a kind."""
    memo = Memo(store, queue, Sessions(Access(None), Pages(), ()), watch_silence_seconds=60)
    named = kopf.Resource(*resource)
    (handler,) = (
        handler
        for handler in kopf.get_default_registry()._watching.get_all_handlers()
        if handler.selector is not None and handler.selector.check(named)
    )
    await handler.fn(event=event, resource=named, memo=memo)  # type: ignore[call-arg, misc]


async def test_an_edit_is_taken_before_the_changes_of_children_and_before_a_relist() -> None:
    store, queue = Store(), WorkQueue()
    queue.add(Key("default", "relisted"), Priority.RELIST)

    await send(SERVICES, {"type": "MODIFIED", "object": manifest("child", 1)}, store, queue)
    await send(LLMDEPLOYMENTS, {"type": "MODIFIED", "object": manifest("edited", 2)}, store, queue)

    assert [(await queue.take()).name for _ in range(3)] == ["edited", "child", "relisted"]


def test_kopf_copies_no_object_to_compare_it_with_a_former_state() -> None:
    settings = kopf.OperatorSettings()
    kopf_settings.choose(settings, watch_silence_seconds=60)
    storage = settings.persistence.diffbase_storage
    body = kopf.Body({"metadata": {"name": "a", "labels": {"a": "b"}}, "spec": {"large": [{}] * 1000}})  # type: ignore[typeddict-item]

    assert storage.build(body=body) == {}
    assert storage.fetch(body=body) is None


async def test_a_deleted_child_leaves_the_store_and_wakes_its_llmdeployment() -> None:
    store, queue = Store(), WorkQueue()
    store.put(SERVICES, manifest("a", 1))

    await send(SERVICES, {"type": "DELETED", "object": manifest("a", 2)}, store, queue)

    assert await queue.take() == Key("default", "a")
    assert store.version(Ref(SERVICES, "default", "a")) == 0


async def test_credentials_are_read_again_when_kopf_asks_for_them_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "PAUSE_SECONDS", 0)
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
    opening = Sessions(await load_configuration(), Pages(), ())

    sent = []
    for content in ("first", "second"):
        token.write_text(content)
        access = await opening.open()
        sent.append(access.aiohttp_session.headers["Authorization"])
        await access.aiohttp_session.close()

    assert sent == ["Bearer first", "Bearer second"]
