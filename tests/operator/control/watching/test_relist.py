"""Lists of a real API server that make up for what watches have lost."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from fault_proxy import FaultProxy, expired_watch, is_watch, status
from kubernetes.aio.client import ApiClient
from llm_operator import informer as informers
from llm_operator.control import cluster as clusters
from llm_operator.control.cluster import Cluster, load_configuration
from llm_operator.control.queue import WorkQueue
from llm_operator.control.turns import Priority
from llm_operator.control.watching import kopf_settings, pages, sessions, shallow_response
from llm_operator.control.watching.pages import Pages
from llm_operator.control.watching.relist import Relist
from llm_operator.control.watching.store import Ref, Store
from llm_operator.informer import Informer
from llm_operator.kinds import CHILDREN, LLMDEPLOYMENTS, PODS, WATCHED
from llm_operator.settings import Settings
from waiting import until_async

from engine_server.contract.cluster import page_size
from engine_server.contract.cluster.api import Key

CONFIG_MAPS = CHILDREN["v1", "ConfigMap"]
SIZE = 5


def config_map(number: int, content: str = "") -> dict[str, Any]:
    """Return a child of the LLMDeployment of this number."""
    labels = {"fairlead.dev/llmdeployment": f"model-{number}"}
    metadata = {"name": f"child-{number}", "labels": labels}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"content": content}}


def keys(world: Any, *numbers: int) -> set[Key]:
    return {Key(world.namespace, f"model-{number}") for number in numbers}


@pytest.fixture
def store(world: Any, monkeypatch: pytest.MonkeyPatch) -> Store:
    """An empty store, for a namespace that has children in three pages."""
    monkeypatch.setattr(pages, "PAGE_SIZE", 2)
    world.delete_all("configmap", labelSelector="fairlead.dev/llmdeployment")
    world.apply(*map(config_map, range(SIZE)))
    return Store()


async def listed(world: Any, cluster: Cluster, store: Store) -> set[Key]:
    """List the children; return the LLMDeployments that are affected."""
    found = Relist(cluster, store, world.namespace, Pages()).run(CONFIG_MAPS)
    return {key async for affected in found for key in affected}


async def test_reads_every_page_and_only_our_objects(world: Any, cluster: Cluster, store: Store) -> None:
    foreign = config_map(9)
    del foreign["metadata"]["labels"]
    world.apply(foreign)

    assert await listed(world, cluster, store) == keys(world, *range(SIZE))

    assert {ref.name for ref in store.refs(CONFIG_MAPS)} == {f"child-{number}" for number in range(SIZE)}
    assert await listed(world, cluster, store) == set()


async def test_finds_what_was_created_changed_and_deleted(world: Any, cluster: Cluster, store: Store) -> None:
    await listed(world, cluster, store)
    world.apply(config_map(1, "changed"), config_map(7))
    world.delete("configmap", "child-2")

    assert await listed(world, cluster, store) == keys(world, 1, 2, 7)

    assert store.version(Ref(CONFIG_MAPS, world.namespace, "child-2")) == 0


@pytest.fixture
async def proxied(world: Any, tmp_path: Path) -> AsyncIterator[tuple[FaultProxy, Informer]]:
    """A proxy, and an informer behind it."""
    proxy = FaultProxy(world.api_server)
    with proxy.running():
        account = proxy.kubeconfig(world.service_account(), tmp_path / "token")
        configuration = await load_configuration(str(account))
        settings = Settings(engine_image="engine:1", relist_seconds=0.01)
        async with ApiClient(configuration) as api:
            cluster = Cluster(api)
            yield proxy, Informer(cluster, Store(), WorkQueue(), configuration, settings, world.namespace)


async def test_a_failed_page_loses_no_change_of_the_pages_before(
    world: Any, store: Store, proxied: tuple[FaultProxy, Informer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(informers, "RETRY_SECONDS", 0.01)
    proxy, informer = proxied

    async def further_pages_fail(request: web.Request) -> web.StreamResponse | None:
        return status(500) if "continue" in request.query else None

    proxy.fault = further_pages_fail
    relisting = asyncio.create_task(informer.keep_relisting())
    await until_async(lambda: proxy.faulted > 1)
    assert set(informer.queue.due) == keys(world, 0, 1)
    proxy.fault = None

    await until_async(lambda: set(informer.queue.due) == keys(world, *range(SIZE)))
    relisting.cancel()


async def test_relists_every_kind_and_pods_every_fifth_time(
    world: Any, store: Store, proxied: tuple[FaultProxy, Informer]
) -> None:
    proxy, informer = proxied

    relisting = asyncio.create_task(informer.keep_relisting())
    pods = PODS.path(world.namespace)
    await until_async(lambda: sum(call.path == pods for call in proxy.calls) == 2)
    relisting.cancel()

    paths = [call.path for call in proxy.calls]
    first, second = (number for number, path in enumerate(paths) if path == pods)
    for resource in set(WATCHED) - {PODS}:
        path = resource.path(world.namespace)
        # Children are on three pages, all others on one.
        pages = 3 if resource == CONFIG_MAPS else 1
        assert paths[first:second].count(path) == 5 * pages, path


async def test_what_a_relist_finds_waits_for_events_and_edits(
    world: Any, store: Store, proxied: tuple[FaultProxy, Informer]
) -> None:
    _, informer = proxied
    await informer.list_kinds([CONFIG_MAPS])
    event, edit = Key("other", "event"), Key("other", "edit")

    informer.queue.add(event, Priority.EVENT)
    informer.queue.add(edit, Priority.EDIT)

    assert [await informer.queue.take() for _ in range(2)] == [edit, event]
    assert await informer.queue.take() in keys(world, *range(SIZE))


async def test_pages_grow_while_objects_are_small(world: Any, proxied: tuple[FaultProxy, Informer]) -> None:
    proxy, informer = proxied
    limits: dict[str, list[int]] = defaultdict(list)

    async def record(request: web.Request) -> None:
        if "limit" in request.query:
            limits[request.path.rsplit("/", 1)[1]].append(int(request.query["limit"]))

    proxy.fault = record
    for _ in range(5):
        await informer.list_kinds(WATCHED)
    stop = asyncio.Event()
    watching = asyncio.create_task(informer.watch(stop))
    await until_async(lambda: all(watch.is_open for watch in informer.watches))
    stop.set()
    await watching

    assert set(limits.pop("llmdeployments")) == {25}
    for given in limits.values():
        # Our own lists, and kopf's.
        assert (given[0], max(given), given[-1]) == (25, 250, 50)


@pytest.mark.more
async def test_large_objects_come_in_small_pages_for_kopf_and_for_relists(
    world: Any, manifest: Any, proxied: tuple[FaultProxy, Informer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_size, "PAGE_BYTES", 10_000)
    proxy, informer = proxied
    large = {"metadata": {"annotations": {"a": "x" * 6_000}}}
    world.apply(*(manifest(f"sized-{number}", podTemplate=large) for number in range(3)))
    queries: list[dict[str, str]] = []

    async def record(request: web.Request) -> None:
        if request.path.endswith("/llmdeployments") and "limit" in request.query:
            queries.append(dict(request.query))

    proxy.fault = record
    stop = asyncio.Event()
    running = asyncio.create_task(informer.run(stop))
    await until_async(lambda: all(watch.is_open for watch in informer.watches))
    stop.set()
    await running
    world.delete_all("llmd", world.namespace)

    # Nothing is known before the first page.
    assert queries[0]["limit"] == "25"
    # kopf and further relists have a page for each.
    assert {query["limit"] for query in queries[1:]} == {"1"}
    assert sum("continue" in query for query in queries[1:]) >= 2


async def test_an_object_that_was_deleted_while_its_watch_was_expired_is_forgotten_by_a_relist_alone(
    world: Any, store: Store, proxied: tuple[FaultProxy, Informer]
) -> None:
    proxy, informer = proxied
    deleted = Ref(CONFIG_MAPS, world.namespace, "child-2")
    expired: list[str] = []

    async def expire(request: web.Request) -> web.StreamResponse | None:
        if request.path != CONFIG_MAPS.path(world.namespace) or not is_watch(request):
            return None
        expired.append(request.query["resourceVersion"])
        return await expired_watch(request)

    stop = asyncio.Event()
    watching = asyncio.create_task(informer.watch(stop))
    await until_async(lambda: informer.store.version(deleted) and all(w.is_open for w in informer.watches))
    proxy.fault = expire
    proxy.cut()
    await until_async(lambda: expired)
    world.delete("configmap", deleted.name)
    expired.clear()
    await until_async(lambda: expired)
    proxy.fault = None
    await until_async(lambda: all(watch.is_open for watch in informer.watches))
    # The watch reports changes again.
    other = Ref(CONFIG_MAPS, world.namespace, "child-1")
    version = informer.store.version(other)
    world.apply(config_map(1, "changed"))
    await until_async(lambda: informer.store.version(other) > version)
    assert informer.store.version(deleted)

    found = await informer.list_kinds([CONFIG_MAPS])

    assert found[CONFIG_MAPS] == 1
    assert not informer.store.version(deleted)
    stop.set()
    await watching


async def test_of_a_page_that_is_too_large_no_more_is_read_and_fewer_objects_are_asked_for(
    world: Any, proxied: tuple[FaultProxy, Informer], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (page_size, shallow_response):
        monkeypatch.setattr(module, "LARGEST_PAGE_BYTES", 200_000)
    proxy, informer = proxied
    world.delete_all("configmap", labelSelector="fairlead.dev/llmdeployment")
    world.apply(*(config_map(number, "x" * 60_000) for number in range(SIZE)))
    limits: list[str] = []

    async def record(request: web.Request) -> None:
        if request.path == CONFIG_MAPS.path(world.namespace) and "limit" in request.query:
            limits.append(request.query["limit"])

    proxy.fault = record
    await informer.list_kinds([CONFIG_MAPS])
    assert limits[:4] == ["25", "12", "6", "3"]
    assert {ref.name for ref in informer.store.refs(CONFIG_MAPS)} == {f"child-{n}" for n in range(SIZE)}

    informer.pages.of(CONFIG_MAPS).limit = 25
    limits.clear()
    stop = asyncio.Event()
    watching = asyncio.create_task(informer.watch(stop))
    await until_async(lambda: all(watch.is_open for watch in informer.watches))
    stop.set()
    await watching
    assert limits[:4] == ["25", "12", "6", "3"]
    world.delete_all("configmap", labelSelector="fairlead.dev/llmdeployment")


@pytest.mark.more
async def test_a_page_that_does_not_come_in_time_is_asked_for_again_with_fewer_llmdeployments(
    world: Any, manifest: Any, proxied: tuple[FaultProxy, Informer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clusters, "REQUEST_SECONDS", 1)
    monkeypatch.setattr(informers, "RETRY_SECONDS", 0.01)
    proxy, informer = proxied
    informer.pages.of(LLMDEPLOYMENTS).limit = 4
    names = {f"slow-{number}" for number in range(3)}
    world.apply(*map(manifest, names))

    async def slow_for_large_pages(request: web.Request) -> None:
        if int(request.query.get("limit", 0)) in range(2, 100):
            await asyncio.Event().wait()

    proxy.fault = slow_for_large_pages
    relisting = asyncio.create_task(informer.keep_relisting())

    def listed_names() -> set[str]:
        return {ref.name for ref in informer.store.refs(LLMDEPLOYMENTS)}

    await until_async(lambda: listed_names() == names)
    relisting.cancel()
    world.delete_all("llmd", world.namespace)


@pytest.mark.more
async def test_kopf_asks_for_fewer_llmdeployments_after_a_page_that_did_not_come_in_time(
    world: Any, manifest: Any, proxied: tuple[FaultProxy, Informer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kopf_settings, "REQUEST_SECONDS", 1)
    monkeypatch.setattr(kopf_settings, "RETRY_SECONDS", 0.01)
    proxy, informer = proxied
    informer.pages.of(LLMDEPLOYMENTS).limit = 4
    stop = asyncio.Event()

    async def slow_for_large_pages(request: web.Request) -> None:
        is_list = request.path.endswith("/llmdeployments") and "limit" in request.query
        if is_list and int(request.query["limit"]) > 1:
            await asyncio.Event().wait()

    proxy.fault = slow_for_large_pages
    watching = asyncio.create_task(informer.watch(stop))

    await until_async(lambda: all(watch.is_open for watch in informer.watches))
    stop.set()
    await watching


async def test_each_page_that_kopf_lists_counts_as_progress(
    world: Any, store: Store, proxied: tuple[FaultProxy, Informer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "KOPF_PAGE_SIZE", 2)
    proxy, informer = proxied
    (watch,) = (watch for watch in informer.watches if watch.resource == CONFIG_MAPS)
    called_at = [watch.called_at]

    async def record(request: web.Request) -> None:
        if request.path == CONFIG_MAPS.path(world.namespace) and "limit" in request.query:
            called_at.append(watch.called_at)

    proxy.fault = record
    stop = asyncio.Event()
    watching = asyncio.create_task(informer.watch(stop))
    await until_async(lambda: all(watch.is_open for watch in informer.watches))
    stop.set()
    await watching

    # Before the list, and of three pages.
    assert len(called_at) == 4
    assert called_at == sorted(set(called_at))
