"""Names for the objects of a test, and calls to the API server in the test's own process."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.config import load_kube_config
from llm_operator.control.cluster import Cluster


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name for the LLMDeployment, which no other test uses."""
    return str(request.node.name).removeprefix("test_").replace("_", "-")[:52].strip("-")


@pytest.fixture
async def cluster(world: Any) -> AsyncIterator[Cluster]:
    configuration = Configuration()
    await load_kube_config(str(world.api_server.kubeconfig), client_configuration=configuration)
    async with ApiClient(configuration) as api:
        yield Cluster(api)
