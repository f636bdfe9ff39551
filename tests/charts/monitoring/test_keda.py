"""The query by which KEDA scales in the example and the documentation, evaluated by promtool."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "keda.yaml"
PAGE = ROOT / "docs" / "autoscaling.md"
IN_FLIGHT = (
    'fairlead_router_endpoint_in_flight{namespace="team", deployment="chat", model="team/chat", endpoint="e"}'
)
HELD = 'fairlead_router_held{model="team/chat", pod="r"}'
OTHER = 'fairlead_router_held{model="other/chat", pod="r"}'


def queries() -> list[str]:
    """Return both queries, for the model team/chat."""
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    documents = [yaml.safe_load(block) for block in blocks if "ScaledObject" in block]
    documents += [each for each in yaml.safe_load_all(EXAMPLE.read_text()) if each["kind"] == "ScaledObject"]
    found = [each["spec"]["triggers"][0]["metadata"]["query"] for each in documents]
    return [re.sub(r'model="[^"]*"', 'model="team/chat"', query) for query in found]


@pytest.mark.parametrize(
    ("series", "demand"),
    [({HELD: 5}, 5), ({IN_FLIGHT: 3}, 3), ({IN_FLIGHT: 3, HELD: 5}, 8), ({OTHER: 9}, 0)],
    ids=["held without an endpoint", "in flight", "both", "of a namesake"],
)
def test_demand_is_what_is_in_flight_and_what_is_held(
    promtool: Any, tmp_path: Path, series: dict[str, int], demand: int
) -> None:
    given = [{"series": name, "values": f"{value}x5"} for name, value in series.items()]
    expected = [{"labels": "{}", "value": demand}]
    cases = [{"expr": query, "eval_time": "2m", "exp_samples": expected} for query in queries()]
    file = tmp_path / "keda.test.yaml"
    file.write_text(json.dumps({"tests": [{"input_series": given, "promql_expr_test": cases}]}))

    tested = promtool("test", "rules", file)

    assert len(cases) == 2
    assert tested.returncode == 0, tested.stdout + tested.stderr
