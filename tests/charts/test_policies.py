"""The names of the router's policies, in all places that list them by hand."""

import json
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from engine_server.contract.cluster.policies import DEFAULT_POLICY, SUMMARIES, PolicyName

NAMES: tuple[str, ...] = get_args(PolicyName)


@pytest.fixture
def chart(root: Path) -> Path:
    return root / "charts" / "fairlead"


def test_values_of_the_chart_may_name_each_policy_and_no_other(chart: Path) -> None:
    schema: Any = json.loads((chart / "values.schema.json").read_text())
    assert schema["properties"]["router"]["properties"]["policy"]["enum"] == [*NAMES]


def test_default_of_the_chart_is_that_of_the_router(chart: Path) -> None:
    assert yaml.safe_load((chart / "values.yaml").read_text())["router"]["policy"] == DEFAULT_POLICY


def test_each_policy_has_a_summary() -> None:
    assert [*SUMMARIES] == [*NAMES]


def test_guide_to_the_router_has_a_row_for_each_policy(root: Path) -> None:
    guide = (root / "docs/router.md").read_text().partition("## Policies\n")[2].partition("\n## ")[0]
    rows = [line.split("`")[1] for line in guide.splitlines() if line.startswith("| `")]
    assert rows == [*NAMES]
    assert f"| `{DEFAULT_POLICY}` (default) |" in guide
