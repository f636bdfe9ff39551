"""The dashboards by the names of their files."""

from charts.monitoring.fleet_dashboard import fleet
from charts.monitoring.model_dashboard import model
from charts.monitoring.operator_dashboard import operator
from charts.monitoring.router_dashboard import router

DASHBOARDS = {"fleet": fleet(), "model": model(), "router": router(), "operator": operator()}
