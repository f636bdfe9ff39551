"""The example of a policy that reserves served names for a namespace, on a real API server."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from waiting import until

EXAMPLE = Path(__file__).parents[3] / "examples" / "reserve-names.yaml"
MESSAGE = "the served names gpt-4o and chat are reserved for the namespace models"
PLURALS = ("validatingadmissionpolicies", "validatingadmissionpolicybindings")


@pytest.fixture(scope="module", autouse=True)
def policy(world: Any, manifest: Any) -> Iterator[None]:
    """Apply the example, and wait until it is in force."""
    policies = list(yaml.safe_load_all(EXAMPLE.read_text()))
    world.apply(*policies)
    until(lambda: MESSAGE in refusal(world, manifest("chat")))
    yield
    for plural, applied in zip(PLURALS, policies, strict=True):
        path = f"/apis/admissionregistration.k8s.io/v1/{plural}/{applied['metadata']['name']}"
        world.call("DELETE", path)


def refusal(world: Any, manifest: dict[str, Any]) -> str:
    done = world.api_server.kubectl("create", "--dry-run=server", "-f", "-", stdin=manifest)
    return str(done.stderr)


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({"model": {"uri": "hf://org/name", "servedNames": ["other", "gpt-4o"]}}, id="model"),
        pytest.param({"adapters": [{"name": "chat", "uri": "hf://org/adapter"}]}, id="adapter"),
    ],
)
def test_a_reserved_name_is_refused_in_another_namespace(
    world: Any, manifest: Any, spec: dict[str, Any]
) -> None:
    assert MESSAGE in refusal(world, manifest("mine", **spec))


def test_a_reserved_name_is_free_in_its_own_namespace(world: Any, manifest: Any) -> None:
    world.create_namespace("models")

    assert refusal(world, manifest("chat", "models")) == ""


def test_other_names_are_free(world: Any, manifest: Any) -> None:
    assert refusal(world, manifest("chat-two", model={"uri": "hf://org/name", "servedNames": ["mine"]})) == ""
