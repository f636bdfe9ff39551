"""Plans of LLMDeployments, with short ways to their parts."""

from collections.abc import Callable
from typing import Any

import pytest
from llm_operator.api.spec import parse
from llm_operator.observed import Observed
from llm_operator.plan.plan import Plan, plan
from llm_operator.settings import Settings

SETTINGS = Settings(engine_image="engine:1")


class Planned:
    """A plan, and the parts of it that tests look at."""

    def __init__(self, goal: Plan) -> None:
        self.goal = goal

    def child(self, kind: str) -> dict[str, Any]:
        (found,) = (child for key, child in self.goal.apply.items() if key.kind == kind)
        return found

    @property
    def template(self) -> dict[str, Any]:
        template: dict[str, Any] = self.child("Deployment")["spec"]["template"]
        return template

    @property
    def pod(self) -> dict[str, Any]:
        spec: dict[str, Any] = self.template["spec"]
        return spec

    @property
    def engine(self) -> dict[str, Any]:
        (container,) = (entry for entry in self.pod["containers"] if entry["name"] == "engine")
        assert isinstance(container, dict)
        return container

    @property
    def containers(self) -> list[dict[str, Any]]:
        return [*self.pod.get("initContainers", []), *self.pod["containers"]]

    @property
    def observed(self) -> Observed:
        """The state of the cluster after the plan has been carried out."""
        return Observed(children=self.goal.apply)


@pytest.fixture(scope="session")
def planned() -> Callable[..., Planned]:
    """Plan a manifest; without a state of the cluster nothing exists yet."""

    def planned(
        manifest: dict[str, Any], observed: Observed | None = None, settings: Settings = SETTINGS
    ) -> Planned:
        return Planned(plan(parse(manifest), observed or Observed(), settings))

    return planned


@pytest.fixture(scope="session")
def environment() -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a container's variables by name."""

    def environment(container: dict[str, Any]) -> dict[str, Any]:
        return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in container["env"]}

    return environment
