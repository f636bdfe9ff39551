"""Writes of status against a real API server."""

from typing import Any

import pytest
from kubernetes.aio.client import ApiException
from llm_operator.api.status import Status
from llm_operator.control.cluster import Cluster
from llm_operator.control.events import Events
from llm_operator.control.status_writer import StatusWriter
from llm_operator.control.watching.store import Store
from llm_operator.kinds import LLMDEPLOYMENTS
from llm_operator.observed import Observed

from engine_server.contract.cluster.api import Key


async def test_writes_once_in_an_interval_and_the_last_status_wins(
    world: Any, manifest: Any, cluster_of_operator: Cluster, name: str
) -> None:
    world.apply(manifest(name))
    key = Key(world.namespace, name)
    writer = StatusWriter(cluster_of_operator, Store(), Events(cluster_of_operator), print, interval=3600)

    async def write(replicas: int) -> float | None:
        observed = Observed(subject=world.get("llmd", name))
        return await writer.write(key, observed, Status(replicas=replicas))

    assert await write(1) is None
    wait = await write(2)
    assert wait is not None and 0 < wait <= 3600
    assert world.get("llmd", name)["status"]["replicas"] == 1

    writer.interval = 0
    assert await write(3) is None
    assert world.get("llmd", name)["status"]["replicas"] == 3


async def test_does_not_write_an_equal_status(
    world: Any, manifest: Any, cluster_of_operator: Cluster, name: str
) -> None:
    world.apply(manifest(name))
    key = Key(world.namespace, name)
    writer = StatusWriter(cluster_of_operator, Store(), Events(cluster_of_operator), print, interval=0)
    await writer.write(key, Observed(subject=world.get("llmd", name)), Status(replicas=1))
    before = world.get("llmd", name)

    assert await writer.write(key, Observed(subject=before), Status(replicas=1)) is None

    assert world.get("llmd", name)["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


async def test_an_edit_that_the_answer_of_a_write_brings_wakes_the_object(
    world: Any, manifest: Any, cluster_of_operator: Cluster, name: str
) -> None:
    world.apply(manifest(name))
    key, store, woken = Key(world.namespace, name), Store(), []
    store.put(LLMDEPLOYMENTS, world.get("llmd", name))
    writer = StatusWriter(cluster_of_operator, store, Events(cluster_of_operator), woken.append, interval=0)

    async def write(replicas: int) -> None:
        await writer.write(key, before, Status(replicas=replicas))

    before = Observed(subject=store.llmdeployment(key) or {})
    await write(1)
    assert woken == []

    world.scale("llmd", name, 3)
    await write(2)

    assert woken == [key]
    # The watch reports the edit later, which changes nothing any more.
    assert store.put(LLMDEPLOYMENTS, world.get("llmd", name)) == frozenset()


async def test_a_status_is_not_written_to_a_later_object_of_the_name(
    world: Any, manifest: Any, cluster_of_operator: Cluster, name: str
) -> None:
    world.apply(manifest(name))
    deleted = Observed(subject=world.get("llmd", name))
    world.delete("llmd", name)
    world.apply(manifest(name))
    key = Key(world.namespace, name)
    writer = StatusWriter(cluster_of_operator, Store(), Events(cluster_of_operator), print)

    with pytest.raises(ApiException) as raised:
        await writer.write(key, deleted, Status(replicas=1))

    assert raised.value.status == 422
    assert "replicas" not in world.get("llmd", name).get("status", {})
