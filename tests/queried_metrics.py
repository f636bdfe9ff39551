"""The queries of the dashboards and alerts, and the metrics that they name."""

from collections.abc import Iterator

import promql_parser
from prometheus_client.parser import text_string_to_metric_families

from charts.monitoring.alerts import ALERTS
from charts.monitoring.dashboards import DASHBOARDS

# The suffixes by which the series of a metric are queried.
SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}


def dashboard_queries() -> dict[str, str]:
    """Return the expressions of all panels for all namespaces and models, by dashboard, panel and query."""
    return {
        f"{board}: {panel.title}: {target.ref_id}": for_all_models(target.expr)
        for board, dashboard in DASHBOARDS.items()
        for panel in dashboard.panels
        for target in getattr(panel, "targets", None) or ()
    }


def for_all_models(expression: str, window: str = "10s") -> str:
    """Return an expression with Grafana's variables replaced, as Grafana does."""
    for name, value in (("$namespace", ".*"), ("$model", ".*"), ("$__rate_interval", window)):
        expression = expression.replace(name, value)
    return expression


def alert_expressions() -> dict[str, str]:
    return {alert.name: alert.expression for alert in ALERTS}


def selectors(expression: str) -> list[promql_parser.VectorSelector]:
    """Return the selectors of series in an expression. Raises ValueError if it can't be parsed."""
    found: list[promql_parser.VectorSelector] = []

    def visit(node: promql_parser.Expr) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            found.append(node)

    promql_parser.walk(promql_parser.parse(expression), pre_visit=visit)
    return found


def queried_metrics(*prefixes: str) -> set[str]:
    """Return the names of the metrics that dashboards and alerts query, of those with one of the prefixes."""
    return {name for name in queried_names() if name.startswith(prefixes)}


def queried_names() -> Iterator[str]:
    for expression in (*dashboard_queries().values(), *alert_expressions().values()):
        for selector in selectors(expression):
            assert selector.name is not None
            yield selector.name


def exported_metrics(page: str) -> set[str]:
    """Return the names by which the metrics of a page in the text format can be queried."""
    return {
        family.name + suffix
        for family in text_string_to_metric_families(page)
        for suffix in SUFFIXES.get(family.type, ("",))
    }
