"""Names for the objects of a test."""

import pytest


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name for the LLMDeployment, which no other test uses."""
    return str(request.node.name).removeprefix("test_").replace("_", "-")[:52].strip("-")
