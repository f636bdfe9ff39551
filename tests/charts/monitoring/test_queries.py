"""Every query of the dashboards and alerts, evaluated by a Prometheus that has scraped real programs."""

import math
import re
from typing import Any

import pytest
from queried_metrics import alert_expressions, dashboard_queries, for_all_models, selectors

from charts.monitoring.dashboards import DASHBOARDS

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize("query", sorted(dashboard_queries()))
def test_query_returns_finite_numbers(recording: Any, query: str) -> None:
    values = recording.values(dashboard_queries()[query])
    assert values
    assert all(map(math.isfinite, values))


@pytest.mark.parametrize("alert", sorted(alert_expressions()))
def test_series_of_an_alert_exist(recording: Any, alert: str) -> None:
    for selector in selectors(alert_expressions()[alert]):
        assert recording.values(selector.prettify()), selector.prettify()


@pytest.mark.parametrize("alert", ["FairleadNoReadyReplica", "FairleadRequestsHeld"])
def test_expression_of_an_alert_holds_for_a_real_fault(recording: Any, alert: str) -> None:
    assert recording.values(alert_expressions()[alert])


def test_failed_requests_are_counted_from_the_first(recording: Any) -> None:
    assert max(recording.values(dashboard_queries()["fleet: Failed requests: A"])) > 0
    assert max(recording.values(dashboard_queries()["router: Ejections: A"])) > 0


def test_memory_of_engines_excludes_other_processes(recording: Any) -> None:
    query = dashboard_queries()["model: Memory of the processes: A"]
    series = recording.stack.history(query, recording.start, recording.end)
    assert {one["metric"]["pod"] for one in series} == {"smollm2-0", "smollm2-1"}


def test_variables_list_namespaces_and_models(recording: Any) -> None:
    labels = {
        variable.name: (for_all_models(variable.query), variable.regex[1:-1])
        for variable in DASHBOARDS["fleet"].templating.list_val
        if variable.name != "datasource"
    }
    found = {}
    for name, (query, part) in labels.items():
        selector, _, label = query.removeprefix("label_values(").removesuffix(")").rpartition(", ")
        values = [series["metric"][label] for series in recording.stack.query(selector)]
        found[name] = {match[1] for value in values if (match := re.search(part, value))}
    assert found == {"namespace": {"default"}, "model": {"down", "scaled"}}
