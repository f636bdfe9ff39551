"""The one source of the Grafana dashboards and of the alerts in the chart."""
