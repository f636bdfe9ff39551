"""The panels and the frame that the dashboards share."""

from collections.abc import Iterable, Sequence
from string import ascii_uppercase
from typing import NamedTuple

from grafana_foundation_sdk.builders.common import (
    ReduceDataOptions,
    StackingConfig,
    VizLegendOptions,
    VizTooltipOptions,
)
from grafana_foundation_sdk.builders.dashboard import (
    Dashboard,
    DashboardLink,
    DatasourceVariable,
    QueryVariable,
    Row,
    ThresholdsConfig,
)
from grafana_foundation_sdk.builders.heatmap import HeatmapColorOptions
from grafana_foundation_sdk.builders.heatmap import Panel as Heatmap
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.builders.stat import Panel as Stat
from grafana_foundation_sdk.builders.table import Panel as Table
from grafana_foundation_sdk.builders.timeseries import Panel as Graph
from grafana_foundation_sdk.models import common, dashboard
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

TAG = "fairlead"
WIDTH = 24
SOURCE = dashboard.DataSourceRef("prometheus", "$datasource")
Panel = Graph | Stat | Table | Heatmap
# A row's title and its panels.
Section = tuple[str, Sequence[Panel]]


class Query(NamedTuple):
    """An expression and the name of its curves, in which {{label}} stands for a label's value."""

    legend: str
    expression: str


class Column(NamedTuple):
    """A column of a table. One without a title is hidden; its labels are shown."""

    title: str
    expression: str
    unit: str = "short"


def graph(
    title: str, description: str, unit: str, *queries: Query, stacked: bool = False, span: int = 8
) -> Graph:
    """Return curves over time."""
    panel = (
        Graph()
        .title(title)
        .description(description)
        .datasource(SOURCE)
        .unit(unit)
        .min(0)
        .span(span)
        .height(8)
        .fill_opacity(30 if stacked else 5)
        .show_points(common.VisibilityMode.NEVER)
        .legend(
            VizLegendOptions()
            .show_legend(True)
            .display_mode(common.LegendDisplayMode.LIST)
            .placement(common.LegendPlacement.BOTTOM)
        )
        .tooltip(VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI).sort(common.SortOrder.DESCENDING))
    )
    if stacked:
        panel = panel.stacking(StackingConfig().mode(common.StackingMode.NORMAL))
    for letter, query in zip(ascii_uppercase, queries, strict=False):
        panel = panel.with_target(
            Dataquery().ref_id(letter).expr(query.expression).legend_format(query.legend).range()
        )
    return panel


def number(
    title: str, description: str, unit: str, expression: str, *limits: tuple[float, str], span: int = 3
) -> Stat:
    """Return the current value, green below the first of the limits, each of which has a color."""
    steps = [dashboard.Threshold(None, "green"), *(dashboard.Threshold(*limit) for limit in limits)]
    return (
        Stat()
        .title(title)
        .description(description)
        .datasource(SOURCE)
        .unit(unit)
        .span(span)
        .height(4)
        .no_value("-")
        .graph_mode(common.BigValueGraphMode.AREA)
        .reduce_options(ReduceDataOptions().calcs(["lastNotNull"]))
        .thresholds(ThresholdsConfig().mode(dashboard.ThresholdsMode.ABSOLUTE).steps(steps))
        .with_target(Dataquery().ref_id("A").expr(expression).range())
    )


def table(title: str, description: str, labels: dict[str, str], *columns: Column, span: int = WIDTH) -> Table:
    """Return a row for each combination of labels, which are given with the titles of their columns.

    Rows have a link to the model's dashboard where `namespace` and `name` are among the labels.
    """
    panel = Table().title(title).description(description).datasource(SOURCE).span(span).height(9)
    titles = dict(labels)
    hidden = {"Time"}
    for letter, column in zip(ascii_uppercase, columns, strict=False):
        panel = panel.with_target(
            Dataquery().ref_id(letter).expr(column.expression).instant().format(PromQueryFormat.TABLE)
        )
        # Grafana names the field of a single query without the query's letter.
        field = f"Value #{letter}" if len(columns) > 1 else "Value"
        if not column.title:
            hidden.add(field)
            continue
        titles[field] = column.title
        unit = dashboard.DynamicConfigValue("unit", column.unit)
        panel = panel.override_by_name(column.title, [unit])
    if "name" in labels:
        link = {
            "title": "Model",
            "url": "/d/fairlead-model?var-datasource=${datasource}"
            f"&var-namespace=${{__data.fields.{labels['namespace']}}}&var-model=${{__value.text}}",
        }
        panel = panel.override_by_name(labels["name"], [dashboard.DynamicConfigValue("links", [link])])
    order = {name: position for position, name in enumerate(titles)}
    return panel.with_transformation(
        dashboard.DataTransformerConfig(id_val="merge", options={})
    ).with_transformation(
        dashboard.DataTransformerConfig(
            id_val="organize",
            options={
                "excludeByName": dict.fromkeys(sorted(hidden), True),
                "indexByName": order,
                "renameByName": titles,
            },
        )
    )


def heatmap(title: str, description: str, unit: str, expression: str, span: int = 8) -> Heatmap:
    """Return the buckets of a histogram over time."""
    query = Dataquery().ref_id("A").expr(expression).legend_format("{{le}}").range()
    return (
        Heatmap()
        .title(title)
        .description(description)
        .datasource(SOURCE)
        .unit(unit)
        .span(span)
        .height(8)
        .calculate(False)
        .color(HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Oranges").steps(64))
        .with_target(query.format(PromQueryFormat.HEATMAP))
    )


def variable(name: str, label: str, query: str, part: str) -> QueryVariable:
    """Return a variable of which several values, or all, may be chosen.

    part: the regular expression whose group is the variable's part of a label.
    """
    return (
        QueryVariable(name)
        .label(label)
        .datasource(SOURCE)
        .query(query)
        .regex(f"/{part}/")
        .refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(dashboard.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(dashboard.VariableOption(selected=True, text="All", value="$__all"))
    )


def board(name: str, description: str, sections: Iterable[Section]) -> dashboard.Dashboard:
    """Return a dashboard with the variables and links that all have."""
    frame = (
        Dashboard(f"Fairlead / {name}")
        .uid(f"fairlead-{name.lower()}")
        .description(description)
        .tags([TAG])
        .refresh("30s")
        .time("now-1h", "now")
        .tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
        .link(
            DashboardLink("Fairlead")
            .type(dashboard.DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .as_dropdown(True)
            .include_vars(True)
            .keep_time(True)
        )
        .with_variable(DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .with_variable(
            variable(
                "namespace",
                "Namespace",
                "label_values(fairlead_operator_desired_replicas, model)",
                r"^(.*)\/",
            )
        )
        .with_variable(
            variable(
                "model",
                "Model",
                'label_values(fairlead_operator_desired_replicas{model=~"$namespace/.*"}, model)',
                r"\/(.*)$",
            )
        )
    )
    number_of_panels = 0
    for title, panels in sections:
        number_of_panels += 1
        frame = frame.with_row(Row(title).id(number_of_panels))
        for panel in panels:
            number_of_panels += 1
            frame = frame.with_panel(panel.id(number_of_panels))
    return frame.build()
