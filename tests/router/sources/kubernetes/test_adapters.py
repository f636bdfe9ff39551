"""Adapters of LLMDeployments, and the pods that have them."""

import pytest
from fake_api import event
from kubernetes_objects import endpoint, llmd, slice_of

from engine_server.router.sources.kubernetes.access import Access


def deployment(*names: str, status: list[dict] | None = None, **spec) -> dict:
    """Return an LLMDeployment with adapters of these names, and what the operator reports of them."""
    wanted = [{"name": name, "uri": f"hf://org/{name}"} for name in names]
    manifest = llmd("m", spec={"adapters": wanted, **spec}, namespace="x")
    return {**manifest, "status": {"adapters": status}} if status is not None else manifest


@pytest.fixture
async def followed(api, follow):
    """Follow a deployment of three pods, one of which is terminating."""
    api.items["llmdeployments"] = [deployment("sql")]
    leaving = endpoint("10.0.0.3", "m-c", ready=False, serving=True, terminating=True)
    api.items["endpointslices"] = [
        slice_of("m", "m-1", endpoint("10.0.0.1", "m-a"), endpoint("10.0.0.2", "m-b"), leaving, namespace="x")
    ]
    return await follow(Access(api.url))


async def test_an_adapter_is_at_the_serving_pods_that_the_status_names(api, followed, eventually):
    assert followed.live("sql") == followed.live("x/sql") == []
    assert followed.directory.resolve("sql").adapter.error == ""

    changed = deployment("sql", status=[{"name": "sql", "hash": "1", "pods": ["m-b", "m-c", "m-z"]}])
    api.watches["llmdeployments"].put_nowait(event("MODIFIED", changed))
    await eventually(lambda: followed.live("sql") == ["http://10.0.0.2:8000"])
    assert followed.live("m") == ["http://10.0.0.1:8000", "http://10.0.0.2:8000"]

    api.watches["llmdeployments"].put_nowait(
        event("MODIFIED", deployment(status=changed["status"]["adapters"]))
    )
    await eventually(lambda: followed.live("sql") is None)


@pytest.mark.parametrize(("pods", "error"), [([], "no space"), (["m-a"], "")])
async def test_the_error_of_an_adapter_counts_while_no_pod_has_it(api, followed, eventually, pods, error):
    status = [{"name": "sql", "pods": pods, "error": "no space"}]
    api.watches["llmdeployments"].put_nowait(event("MODIFIED", deployment("sql", "law", status=status)))
    await eventually(lambda: followed.directory.resolve("law"))
    assert followed.directory.resolve("sql").adapter.error == error
    assert followed.directory.resolve("law").adapter.error == ""


async def test_a_deployment_at_zero_has_adapters_and_a_waker(api, followed, eventually):
    asleep = deployment("sql", replicas=0, autoscaling={"max": 2})
    api.watches["llmdeployments"].put_nowait(event("MODIFIED", asleep))
    await eventually(lambda: followed.directory.resolve("sql").deployment.waker)
