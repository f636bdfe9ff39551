"""Namespaces that are missing, and the reasons for which an operator is unhealthy."""

import asyncio
import sys
import time
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest
from llm_operator import informer as informers
from llm_operator.control import tracing
from llm_operator.control.cluster import Access, Cluster, load_configuration
from llm_operator.control.queue import WorkQueue
from llm_operator.control.watching.store import Store
from llm_operator.informer import Informer
from llm_operator.settings import Settings
from waiting import until


def missing(operator: Any, namespace: str) -> float:
    """Return the metric for a namespace."""
    return float(operator.metric("fairlead_operator_namespace_missing", namespace=namespace))


def test_a_missing_namespace_blocks_no_other_and_recovers_without_a_restart(
    world: Any, manifest: Any, start_operator: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(informers, "MISSING_SECONDS", 0.2)
    present, absent = world.namespace, f"{world.namespace}-absent"
    flags = (f"--namespace={absent}", f"--namespace={present}", f"--lease-namespace={present}")
    operator = start_operator(world.service_account(), *flags)
    world.apply(manifest(name))

    until(lambda: world.condition(name, "Ready"))
    assert (missing(operator, absent), missing(operator, present)) == (1, 0)
    assert operator.log.count(f"cannot list namespace {absent}") == 1

    world.create_namespace(absent)
    world.service_account(present, absent)
    world.apply(manifest(name, absent))

    until(lambda: world.condition(name, "Ready", absent))
    assert missing(operator, absent) == 0
    assert operator.stop() == 0


def test_an_operator_needs_no_rights_beyond_its_namespaces(
    world: Any, manifest: Any, start_operator: Any
) -> None:
    red, blue = (world.create_namespace(f"{world.namespace}-{color}") for color in ("red", "blue"))
    account = world.service_account(red, red, blue)
    start_operator(account, f"--namespace={red}", f"--namespace={blue}", f"--lease-namespace={red}")
    for namespace in (red, blue):
        world.apply(manifest("model", namespace))
        until(lambda namespace=namespace: world.condition("model", "Ready", namespace))


async def test_the_parts_of_a_watch_that_stops_amid_a_list_can_be_closed_in_any_order(
    world: Any, manifest: Any, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    models, stop = 40, asyncio.Event()
    namespace = world.create_namespace(f"{world.namespace}-listed")
    world.apply(*(manifest(f"model-{number}", namespace) for number in range(models)))
    puts = []
    put = Store.put

    def put_and_stop(*arguments: Any) -> Any:
        puts.append(arguments)
        # The informer's own list comes before kopf's.
        if len(puts) > models:
            stop.set()
        return put(*arguments)

    monkeypatch.setattr(Store, "put", put_and_stop)
    generators: list[AsyncGenerator[Any]] = []
    sys.set_asyncgen_hooks(firstiter=generators.append)
    access = await load_configuration(str(world.kubeconfig))
    informer = Informer(cluster, Store(), WorkQueue(), access, Settings(engine_image="engine:1"), namespace)

    await informer.run(stop)

    assert len(puts) < 2 * models
    for innermost in reversed(generators):
        await innermost.aclose()


@pytest.fixture
def informer() -> Informer:
    settings = Settings(engine_image="engine:1")
    fresh = Informer(None, Store(), WorkQueue(), Access(None), settings, "team-a")  # type: ignore[arg-type]
    for watch in fresh.watches:
        watch.open()
    return fresh


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> float:
    """The time in seconds, at which the clock of informers and watches stands still."""
    now = time.monotonic()
    for module in (informers, tracing):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    return now


def test_an_operator_with_open_watches_and_recent_lists_is_healthy(informer: Informer) -> None:
    assert list(informer.problems()) == []


def test_a_watch_that_is_interrupted_for_a_minute_is_a_problem(informer: Informer, now: float) -> None:
    watch = informer.watches[0]
    watch.interrupt()
    assert list(informer.problems()) == []

    watch.since = now - 61

    assert list(informer.problems()) == ["llmdeployments of namespace team-a were not watched for 61 s"]


def test_a_relist_that_is_overdue_for_a_minute_is_a_problem(informer: Informer, now: float) -> None:
    informer.listed_at = now - 119
    assert list(informer.problems()) == []

    informer.listed_at = now - 121

    assert list(informer.problems()) == ["namespace team-a was not listed for 121 s"]


def test_a_missing_namespace_is_no_problem(informer: Informer) -> None:
    informer.listed_at = 0
    informer.is_missing = True

    assert list(informer.problems()) == []


async def test_kopf_is_waited_for_while_it_lists_or_watches_each_kind(
    informer: Informer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(informers, "CONFIRM_SECONDS", 0)
    watch = informer.watches[0]
    watch.interrupt()
    # It waits for an answer to its last call.
    watch.called_at = time.monotonic() + 3600
    kopf_ends = asyncio.Event()
    kopf = asyncio.create_task(kopf_ends.wait())

    forgotten = asyncio.create_task(informer.kinds_not_watched([kopf]))
    kopf_ends.set()

    assert await forgotten == []


async def test_a_kind_that_kopf_does_not_list_is_reported_as_not_watched(
    informer: Informer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(informers, "CONFIRM_SECONDS", 0)
    missed, slow = informer.watches[:2]
    for watch in (missed, slow):
        watch.interrupt()
    slow.called_at = time.monotonic() + 3600
    kopf = asyncio.create_task(asyncio.Event().wait())

    assert await informer.kinds_not_watched([kopf]) == [missed.resource.plural]

    kopf.cancel()


async def test_open_watches_count_as_watched_however_long_they_are_silent(
    informer: Informer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(informers, "CONFIRM_SECONDS", 0)

    assert await informer.kinds_not_watched([]) == []
