"""The pauses after failures of the API server: work resumes within 5 s after it answers again."""

import asyncio
from typing import Any

import pytest
from kubernetes.aio.client import ApiException
from llm_operator.control import lease
from llm_operator.control.cluster import Cluster
from llm_operator.control.reconcile import Reconciler, RefusedError
from llm_operator.control.watching.kopf_settings import EndlessRetries
from llm_operator.informer import seconds_after
from llm_operator.kinds import DEPLOYMENTS, LLMDEPLOYMENTS
from llm_operator.settings import Settings

from engine_server.contract.cluster.api import Key

KEY = Key("default", "a")
MOST_SECONDS = 5


async def pause_after(reconciler: Reconciler, error: Exception, failures: int) -> float:
    """Return the seconds until an LLMDeployment is reconciled again after so many failures."""
    for _ in range(failures):
        reconciler.queue.add(KEY)
        reconciler.retry(await reconciler.queue.take(), error)
    return reconciler.queue.timers[KEY].when() - asyncio.get_running_loop().time()


@pytest.fixture
def reconciler() -> Reconciler:
    return Reconciler(None, Settings(engine_image="engine:1"))  # type: ignore[arg-type]


@pytest.mark.parametrize("code", [409, 500, 502])
async def test_a_reconcile_that_the_server_failed_is_repeated_however_often_it_failed(
    reconciler: Reconciler, code: int
) -> None:
    assert await pause_after(reconciler, ApiException(status=code), failures=20) <= MOST_SECONDS


@pytest.mark.parametrize("error", [ApiException(status=422), ValueError("unexpected")])
async def test_what_only_a_change_can_help_is_repeated_less_and_less_often(
    reconciler: Reconciler, error: Exception
) -> None:
    assert await pause_after(reconciler, error, failures=20) > MOST_SECONDS


async def test_a_refusal_is_reported_as_soon_as_the_status_may_be_written_again(
    world: Any, manifest: Any, cluster_of_operator: Cluster
) -> None:
    key = Key(world.namespace, "refused")
    reconciler = Reconciler(cluster_of_operator, Settings(engine_image="engine:1"))

    def edit(port: int) -> None:
        container = {"name": "engine", "ports": [{"containerPort": port}]}
        world.apply(manifest("refused", podTemplate={"spec": {"containers": [container]}}))
        reconciler.store.put(LLMDEPLOYMENTS, world.get("llmd", "refused"))

    edit(70000)
    with pytest.raises(RefusedError, match="70000"):
        await reconciler.reconcile(key)
    edit(80000)
    reconciler.status_writer.interval = 3600

    again_after = await reconciler.reconcile(key)

    assert again_after is not None and again_after <= 3600
    assert "70000" in world.condition("refused", "Degraded")["message"]
    reconciler.status_writer.interval = 0
    with pytest.raises(RefusedError, match="80000"):
        await reconciler.reconcile(key)
    assert "80000" in world.condition("refused", "Degraded")["message"]


def test_lists_watches_and_the_lease_are_asked_for_again() -> None:
    pauses = {
        "lists": seconds_after(ApiException(status=500)),
        "lists without an answer": seconds_after(TimeoutError()),
        "watches": next(iter(EndlessRetries())),
        # A call is given up before the next one.
        "the Lease": lease.CALL_SECONDS + lease.RETRY_SECONDS,
    }

    assert max(pauses.values()) <= MOST_SECONDS, pauses
    asked = ApiException(status=429)
    asked.headers = {"Retry-After": "30"}
    assert seconds_after(asked) == 30


class FailingWebhook(Cluster):
    """An API server that answers, but for applies."""

    async def apply(self, *_: Any) -> Any:
        raise ApiException(status=500, reason="failed calling webhook")


async def test_replicas_are_reported_while_applies_fail(
    world: Any, manifest: Any, cluster_of_operator: Cluster
) -> None:
    key = Key(world.namespace, "webhook")
    reconciler = Reconciler(cluster_of_operator, Settings(engine_image="engine:1"))
    world.apply(manifest("webhook"))
    reconciler.store.put(LLMDEPLOYMENTS, world.get("llmd", "webhook"))
    await reconciler.reconcile(key)
    world.set_status("deployment", "webhook-engine", {"replicas": 1, "readyReplicas": 1})
    world.apply(manifest("webhook", engine={"maxModelLen": 512}))
    for resource, kind, name in (
        (DEPLOYMENTS, "deployment", "webhook-engine"),
        (LLMDEPLOYMENTS, "llmd", "webhook"),
    ):
        reconciler.store.put(resource, world.get(kind, name))
    reconciler.cluster = FailingWebhook(cluster_of_operator.api)
    reconciler.status_writer.interval = 0

    with pytest.raises(ApiException, match="webhook"):
        await reconciler.reconcile(key)

    assert world.get("llmd", "webhook")["status"]["readyReplicas"] == 1
    # The edit has not been carried out.
    for condition in ("Progressing", "Reconciling"):
        found = world.condition("webhook", condition)
        assert (found["status"], found["reason"]) == ("True", "RollingOut")
        assert "failed calling webhook" in found["message"]
    assert not world.condition("webhook", "Stalled")


async def test_a_deleted_object_adopts_no_orphan(
    world: Any, manifest: Any, cluster_of_operator: Cluster
) -> None:
    key = Key(world.namespace, "orphaning")
    reconciler = Reconciler(cluster_of_operator, Settings(engine_image="engine:1"))
    world.apply(manifest("orphaning"))
    reconciler.store.put(LLMDEPLOYMENTS, world.get("llmd", "orphaning"))
    await reconciler.reconcile(key)
    world.patch("deployment", "orphaning-engine", {"metadata": {"ownerReferences": None}})
    reconciler.store.put(DEPLOYMENTS, world.get("deployment", "orphaning-engine"))
    # No watch has reported the deletion yet.
    world.delete("llmd", "orphaning")

    with pytest.raises(RefusedError, match="being deleted"):
        await reconciler.reconcile(key)

    assert "ownerReferences" not in world.get("deployment", "orphaning-engine")["metadata"]
