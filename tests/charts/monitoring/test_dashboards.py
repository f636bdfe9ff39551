"""The dashboards as they are generated."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from llm_operator import metrics
from prometheus_client import generate_latest
from queried_metrics import dashboard_queries, exported_metrics, queried_metrics, queried_names, selectors

from charts.monitoring.__main__ import main as write
from charts.monitoring.dashboards import DASHBOARDS

FILES = Path(__file__).parents[3] / "charts" / "fairlead" / "files"
COMPONENTS = ("vllm:", "fairlead:", "http_", "process_", "fairlead_router_", "fairlead_operator_")


@pytest.fixture(params=sorted(DASHBOARDS))
def board(request: pytest.FixtureRequest) -> dict[str, Any]:
    loaded = json.loads((FILES / "dashboards" / f"{request.param}.json").read_text())
    assert isinstance(loaded, dict)
    return loaded


def test_every_metric_belongs_to_engine_router_or_operator() -> None:
    assert [name for name in queried_names() if not name.startswith(COMPONENTS)] == []


def test_every_metric_of_the_operator_in_dashboards_and_alerts_is_exported() -> None:
    exported = exported_metrics(generate_latest(metrics.REGISTRY).decode())
    assert queried_metrics("fairlead_operator_", "process_") <= exported


def test_queries_of_models_can_be_narrowed_to_namespaces_and_models(board: dict[str, Any]) -> None:
    variables = [variable["name"] for variable in board["templating"]["list"]]
    assert variables == ["datasource", "namespace", "model"]
    narrowed = [
        target
        for panel in board["panels"]
        for target in panel.get("targets", ())
        if "$namespace" in target["expr"] and "$model" in target["expr"]
    ]
    assert narrowed


def test_panels_have_descriptions_units_and_distinct_ids(board: dict[str, Any]) -> None:
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    assert all(panel["description"].endswith(".") and panel["targets"] for panel in panels)
    assert all(panel["fieldConfig"]["defaults"].get("unit") for panel in panels if panel["type"] != "table")
    assert max(Counter(panel["id"] for panel in board["panels"]).values()) == 1
    for panel in panels:
        letters = [target["refId"] for target in panel["targets"]]
        assert letters == sorted(set(letters)) and all(letters)


def test_panels_do_not_overlap(board: dict[str, Any]) -> None:
    cells = Counter(
        (x, y)
        for panel in board["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    )
    assert max(cells.values()) == 1
    assert max(x for x, _ in cells) < 24


def test_generated_files_are_current(tmp_path: Path) -> None:
    write(tmp_path)
    generated = {file.relative_to(tmp_path): file.read_text() for file in tmp_path.rglob("*.*")}
    assert len(generated) == 5
    for file, content in generated.items():
        assert (FILES / file).read_text() == content, "run `make manifests`"


@pytest.mark.parametrize("query", sorted(dashboard_queries()))
def test_query_is_valid_and_selects_series(query: str) -> None:
    assert selectors(dashboard_queries()[query])
