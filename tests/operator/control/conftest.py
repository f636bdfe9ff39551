"""Names for the objects of a test, and calls to the API server in the test's own process."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from kubernetes.aio.client import ApiClient
from llm_operator.control.cluster import Cluster, load_configuration


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name for the LLMDeployment, which no other test of the module uses."""
    return str(request.node.name).removeprefix("test_").replace("_", "-")[:52].strip("-")


@pytest.fixture(scope="module")
def manifest(world: Any, manifest: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """Return a function that makes an LLMDeployment, in the module's namespace by default."""

    def in_namespace(name: str, namespace: str = world.namespace, **spec: Any) -> dict[str, Any]:
        return manifest(name, namespace, **spec)

    return in_namespace


@pytest.fixture
async def cluster(world: Any) -> AsyncIterator[Cluster]:
    """The API with an administrator's rights."""
    async with ApiClient(await load_configuration(str(world.kubeconfig))) as api:
        yield Cluster(api)


@pytest.fixture
async def cluster_of_operator(world: Any) -> AsyncIterator[Cluster]:
    """The API with the operator's own rights, which do not include reading events."""
    async with ApiClient(await load_configuration(str(world.service_account()))) as api:
        yield Cluster(api)
