"""The chart's dashboards, alerts, PodMonitors and ServiceMonitors."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart_manifests import SET_IMAGE, find

from engine_server.contract.cluster import labels

Manifest = dict[str, Any]
Render = Callable[..., list[Manifest]]
Helm = Callable[..., subprocess.CompletedProcess[str]]

FILES = Path(__file__).parents[2] / "charts" / "fairlead" / "files"
RUNBOOKS = "https://docs.example/monitoring"


def of_kind(manifests: list[Manifest], kind: str) -> list[Manifest]:
    return [manifest for manifest in manifests if manifest["kind"] == kind]


def test_nothing_of_monitoring_is_rendered_by_default(render: Render) -> None:
    kinds = {manifest["kind"] for manifest in render()}
    assert not {"ConfigMap", "PrometheusRule", "PodMonitor", "ServiceMonitor"} & kinds


def test_dashboards_are_labelled_config_maps(render: Render) -> None:
    rendered = of_kind(render(dashboards={"enabled": True, "annotations": {"folder": "x"}}), "ConfigMap")
    names = ["fleet", "model", "operator", "router"]
    assert [config["metadata"]["name"] for config in rendered] == [
        f"fairlead-dashboard-{name}" for name in names
    ]
    for name, config in zip(names, rendered, strict=True):
        assert config["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert config["metadata"]["annotations"] == {"folder": "x"}
        content = json.loads(config["data"][f"{name}.json"])
        assert content == json.loads((FILES / "dashboards" / f"{name}.json").read_text())


@pytest.mark.parametrize("monitors", ["podMonitors", "serviceMonitors"])
def test_alerts_are_those_of_the_file(render: Render, monitors: str) -> None:
    (rendered,) = of_kind(
        render(prometheusRules={"enabled": True, "labels": {"release": "prometheus"}}), "PrometheusRule"
    )
    assert rendered["metadata"]["labels"]["release"] == "prometheus"
    of_present, of_absent = yaml.safe_load((FILES / "rules.yaml").read_text())["groups"]
    assert rendered["spec"] == {"groups": [of_present]}
    (monitored,) = of_kind(
        render(prometheusRules={"enabled": True}, **{monitors: {"enabled": True}}), "PrometheusRule"
    )
    assert monitored["spec"] == {"groups": [of_present, of_absent]}


def test_alerts_link_to_their_sections(render: Render) -> None:
    (rendered,) = of_kind(render(prometheusRules={"enabled": True, "runbookUrl": RUNBOOKS}), "PrometheusRule")
    (group,) = rendered["spec"]["groups"]
    for rule in group["rules"]:
        assert rule["annotations"]["runbook_url"] == f"{RUNBOOKS}#{rule['alert'].lower()}"


@pytest.mark.parametrize("component", ["operator", "router"])
def test_pod_monitors_keep_the_namespace_of_llmdeployments(render: Render, component: str) -> None:
    monitors = of_kind(render(podMonitors={"enabled": True}), "PodMonitor")
    monitor = next(one for one in monitors if one["metadata"]["name"] == f"fairlead-{component}")
    assert [endpoint["honorLabels"] for endpoint in monitor["spec"]["podMetricsEndpoints"]] == [True]


def test_pod_monitor_of_engines_adds_the_label_that_dashboards_select_by(render: Render) -> None:
    monitors = of_kind(render(podMonitors={"enabled": True}), "PodMonitor")
    monitor = next(one for one in monitors if one["metadata"]["name"] == "fairlead-engines")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["relabelings"] == [
        {
            "sourceLabels": ["__meta_kubernetes_pod_label_fairlead_dev_llmdeployment"],
            "targetLabel": "llmdeployment",
        },
        {
            "sourceLabels": [
                "__meta_kubernetes_namespace",
                "__meta_kubernetes_pod_label_fairlead_dev_llmdeployment",
            ],
            "separator": "/",
            "targetLabel": "model",
        },
    ]


def test_service_monitors_scrape_as_pod_monitors_do(render: Render) -> None:
    settings = {"enabled": True, "labels": {"release": "prometheus"}, "interval": "30s"}
    by_pod = of_kind(render(podMonitors=settings), "PodMonitor")
    by_service = of_kind(render(serviceMonitors=settings), "ServiceMonitor")

    for monitor in by_pod:
        spec = monitor["spec"]
        same = {**monitor, "kind": "ServiceMonitor"}
        same["spec"] = {**spec, "endpoints": spec["podMetricsEndpoints"]}
        del same["spec"]["podMetricsEndpoints"]
        assert same in by_service
    assert len(by_service) == len(by_pod) == 3


@pytest.mark.parametrize("component", ["operator", "router"])
def test_service_monitors_find_a_service_with_the_port_of_metrics(render: Render, component: str) -> None:
    manifests = render(serviceMonitors={"enabled": True})
    monitor = find(manifests, "ServiceMonitor", f"fairlead-{component}")["spec"]
    wanted = monitor["selector"]["matchLabels"].items()
    (endpoint,) = monitor["endpoints"]
    pods = find(manifests, "Deployment", f"fairlead-{component}")["spec"]["selector"]["matchLabels"]

    scraped = [
        service["spec"]["selector"]
        for service in of_kind(manifests, "Service")
        if wanted <= service["metadata"]["labels"].items()
        and endpoint["port"] in [port["name"] for port in service["spec"]["ports"]]
    ]

    assert scraped == [pods]


def test_service_monitor_of_engines_selects_their_services_and_port(render: Render) -> None:
    monitor = find(render(serviceMonitors={"enabled": True}), "ServiceMonitor", "fairlead-engines")["spec"]
    assert monitor["selector"]["matchLabels"].items() <= labels.child_labels("any", "0").items()
    assert [endpoint["port"] for endpoint in monitor["endpoints"]] == [labels.HTTP_PORT_NAME]


def test_pods_are_not_scraped_twice(helm: Helm) -> None:
    switches = [f"--set={kind}Monitors.enabled=true" for kind in ("pod", "service")]
    result = helm("template", "fairlead", FILES.parent, SET_IMAGE, *switches)
    assert result.returncode != 0
    assert "would scrape every pod twice" in result.stderr
