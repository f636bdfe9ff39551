"""Values of the chart that add or change objects; all of them are off by default."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from chart_manifests import EVERY_VALUE, IMAGE, SET_IMAGE, Manifest, arguments, find, kinds, names, pod_of
from llm_operator import flags
from llm_operator.api.pod_policy import read_pod_policy
from llm_operator.api.profiles import read_profiles
from llm_operator.settings import PodPolicy

from engine_server.contract.cluster.labels import selector

Render = Callable[..., list[Manifest]]


def container(manifests: list[Manifest], component: str) -> Manifest:
    found: Manifest = pod_of(manifests, component)["spec"]["containers"][0]
    return found


def test_objects_that_clusters_may_lack_are_off_by_default(render: Render) -> None:
    assert kinds(render()) == {
        "ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition", "Deployment",
        "PodDisruptionBudget", "Role", "RoleBinding", "Secret", "Service", "ServiceAccount",
    }  # fmt: skip


def test_common_labels_are_on_every_object_and_pod_and_not_in_selectors(render: Render) -> None:
    manifests = render(commonLabels={"cost-center": "ml", "app.kubernetes.io/name": "other"})
    templates = [pod_of(manifests, component) for component in ("operator", "router")]
    for labeled in (*manifests, *templates):
        assert labeled["metadata"]["labels"]["cost-center"] == "ml"
        assert labeled["metadata"]["labels"]["app.kubernetes.io/name"] == "fairlead"
    for component in ("operator", "router"):
        chosen = find(manifests, "Deployment", f"fairlead-{component}")["spec"]["selector"]["matchLabels"]
        assert "cost-center" not in chosen


@pytest.mark.parametrize("component", ["operator", "router"])
def test_variables_volumes_and_mounts_are_added(render: Render, component: str) -> None:
    extra = {
        "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy"}],
        "extraVolumes": [{"name": "trust", "configMap": {"name": "trust"}}],
        "extraVolumeMounts": [{"name": "trust", "mountPath": "/trust"}],
    }
    manifests = render(**{component: extra})
    assert container(manifests, component)["env"] == extra["extraEnv"]
    assert extra["extraVolumeMounts"][0] in container(manifests, component)["volumeMounts"]
    assert extra["extraVolumes"][0] in pod_of(manifests, component)["spec"]["volumes"]


def test_operator_and_routers_get_the_organizations_of_served_names(render: Render) -> None:
    manifests = render(servedNameOrganizations=["google", "openai"])
    for component in ("operator", "router"):
        given = [each for each in arguments(manifests, component) if "organization" in each]
        assert given == ["--served-name-organization=google", "--served-name-organization=openai"]


def test_the_routers_service_has_families_labels_and_a_policy_of_its_own(render: Render) -> None:
    families = {"ipFamilyPolicy": "PreferDualStack", "ipFamilies": ["IPv6", "IPv4"]}
    labels = {"team": "ml", "app.kubernetes.io/name": "other"}
    values = {"service": {**families, "labels": labels, "internalTrafficPolicy": "Local"}}

    service = find(render(router=values), "Service", "fairlead-router")

    assert (families | {"internalTrafficPolicy": "Local"}).items() <= service["spec"].items()
    found = service["metadata"]["labels"]
    assert (found["team"], found["app.kubernetes.io/name"]) == ("ml", "fairlead")


def test_the_routers_service_is_left_to_the_clusters_defaults(render: Render) -> None:
    assert find(render(), "Service", "fairlead-router")["spec"].keys() == {"type", "selector", "ports"}


@pytest.mark.parametrize("field", ["clusterIP", "loadBalancerIP", "sessionAffinity", "typ"])
def test_another_field_of_the_routers_service_is_refused_with_what_to_do(
    helm: Any, root: Path, field: str
) -> None:
    given = f"--set=router.service.{field}=None"
    result = helm("template", "fairlead", root / "charts/fairlead", SET_IMAGE, given)

    assert result.returncode != 0
    assert f"router.service.{field} is no value of the chart, which has type, port, " in result.stderr
    assert "make a Service of your own (docs/operations.md#a-service-of-your-own)" in result.stderr


@pytest.mark.parametrize(("enabled", "installed"), [("true", True), ("false", False)])
def test_another_chart_has_this_one_on_a_condition(
    helm: Any, root: Path, tmp_path: Path, enabled: str, installed: bool
) -> None:
    umbrella = tmp_path / "umbrella"
    (umbrella / "charts").mkdir(parents=True)
    (umbrella / "charts/fairlead").symlink_to(root / "charts/fairlead")
    dependency = {"name": "fairlead", "version": "*", "condition": "fairlead.enabled"}
    content = {"apiVersion": "v2", "name": "umbrella", "version": "1.0.0", "dependencies": [dependency]}
    (umbrella / "Chart.yaml").write_text(json.dumps(content))

    rendered = helm(
        "template", "x", umbrella, f"--set=fairlead.enabled={enabled},fairlead.image.repository={IMAGE}"
    )
    misspelt = helm(
        "template", "x", umbrella, f"--set=fairlead.enabld=true,fairlead.image.repository={IMAGE}"
    )

    assert rendered.returncode == 0, rendered.stderr
    assert ("kind: Deployment" in rendered.stdout) is installed
    assert "additional properties 'enabld' not allowed" in misspelt.stderr


def test_the_pod_of_the_releases_test_is_placed_as_routers_are(render: Render) -> None:
    nodes = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}
    placement = {
        "nodeSelector": {"pool": "cpu"},
        "tolerations": [{"key": "pool", "operator": "Exists"}],
        "priorityClassName": "high",
    }
    affinity = {"nodeAffinity": nodes, "podAntiAffinity": {}}

    manifests = render(tests=True, router={**placement, "affinity": affinity})

    pod = find(manifests, "Pod", "fairlead-test")["spec"]
    assert (placement | {"affinity": {"nodeAffinity": nodes}}).items() <= pod.items()
    assert pod["enableServiceLinks"] is False
    assert (placement | {"affinity": affinity}).items() <= pod_of(manifests, "router")["spec"].items()


def test_security_contexts_can_be_left_to_the_platform(render: Render) -> None:
    manifests = render(podSecurityContext=None, securityContext=None)
    for component in ("operator", "router"):
        assert "securityContext" not in pod_of(manifests, component)["spec"]
        assert "securityContext" not in container(manifests, component)


def test_one_field_of_the_security_context_can_be_left_to_the_platform(render: Render) -> None:
    manifests = render(podSecurityContext={"runAsUser": None, "runAsGroup": None, "fsGroup": None})
    assert pod_of(manifests, "router")["spec"]["securityContext"] == {
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def test_spread_without_a_selector_is_over_the_components_own_pods(render: Render) -> None:
    constraint = {"maxSkew": 2, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    own = {**constraint, "labelSelector": {"matchLabels": {"a": "b"}}}
    manifests = render(operator={"topologySpreadConstraints": [constraint, own]})
    chosen = find(manifests, "Deployment", "fairlead-operator")["spec"]["selector"]
    assert pod_of(manifests, "operator")["spec"]["topologySpreadConstraints"] == [
        {**constraint, "labelSelector": chosen, "matchLabelKeys": ["pod-template-hash"]},
        own,
    ]


@pytest.mark.parametrize("component", ["operator", "router"])
def test_autoscaler_of_nodes_may_remove_pods_whose_only_local_volume_is_scratch(
    component: str, render: Render
) -> None:
    name = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"
    manifests = render(**{component: {"podAnnotations": {"a": "b"}}})
    assert pod_of(manifests, component)["metadata"]["annotations"].items() >= {name: "tmp", "a": "b"}.items()
    volumes = pod_of(manifests, component)["spec"]["volumes"]
    assert [volume["name"] for volume in volumes if "emptyDir" in volume] == ["tmp"]


@pytest.mark.parametrize("component", ["operator", "router"])
def test_pods_get_no_variables_of_services(component: str, render: Render) -> None:
    assert pod_of(render(), component)["spec"]["enableServiceLinks"] is False


def test_budgets_let_one_pod_be_evicted_and_never_keep_a_broken_one(render: Render) -> None:
    manifests = render()
    for component in ("operator", "router"):
        budget = find(manifests, "PodDisruptionBudget", f"fairlead-{component}")["spec"]
        assert budget["maxUnavailable"] == 1
        assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
        assert (
            budget["selector"] == find(manifests, "Deployment", f"fairlead-{component}")["spec"]["selector"]
        )


def test_an_autoscaler_owns_the_count_of_routers(render: Render) -> None:
    manifests = render(router={"autoscaling": {"enabled": True, "minReplicas": 3, "cpu": "500m"}})
    autoscaler = find(manifests, "HorizontalPodAutoscaler", "fairlead-router")["spec"]
    assert autoscaler["scaleTargetRef"]["name"] == "fairlead-router"
    assert (autoscaler["minReplicas"], autoscaler["maxReplicas"]) == (3, 10)
    assert autoscaler["metrics"][0]["resource"]["target"]["averageValue"] == "500m"
    assert "replicas" not in find(manifests, "Deployment", "fairlead-router")["spec"]


def test_a_named_service_account_is_used_and_bound_and_not_created(render: Render) -> None:
    manifests = render(
        operator={"serviceAccount": {"create": False, "name": "given"}},
        router={"serviceAccount": {"name": "own"}},
    )
    assert names(manifests, "ServiceAccount") == {"own"}
    assert pod_of(manifests, "operator")["spec"]["serviceAccountName"] == "given"
    assert pod_of(manifests, "router")["spec"]["serviceAccountName"] == "own"
    bound = {
        (binding["metadata"]["name"], binding["subjects"][0]["name"])
        for binding in manifests
        if binding["kind"].endswith("RoleBinding")
    }
    assert bound == {
        ("fairlead-operator-fairlead-system", "given"),
        ("fairlead-operator-keys", "given"),
        ("fairlead-operator-lease", "given"),
        ("fairlead-operator-routers", "given"),
        ("fairlead-router-fairlead-system", "own"),
    }


@pytest.mark.parametrize(("hold", "wakes"), [({}, True), ({"seconds": 0}, False), ({"requests": 0}, False)])
def test_the_router_may_scale_only_where_it_wakes_deployments(
    render: Render, hold: dict[str, int], wakes: bool
) -> None:
    rules = find(render(router={"hold": hold}), "ClusterRole", "fairlead-router-fairlead-system")["rules"]
    scaling = [rule for rule in rules if "llmdeployments/scale" in rule["resources"]]
    assert bool(scaling) is wakes
    assert all(rule["verbs"] == ["patch"] for rule in scaling)


def test_ingress_and_route_lead_to_the_router(render: Render) -> None:
    manifests = render(**EVERY_VALUE)
    service = find(manifests, "Service", "fairlead-router")
    ingress = find(manifests, "Ingress", "fairlead-router")["spec"]
    assert ingress["ingressClassName"] == "nginx"
    assert ingress["tls"][0]["secretName"] == "models-tls"
    assert ingress["rules"][0]["host"] == "models.example.com"
    assert ingress["rules"][0]["http"]["paths"][0]["backend"]["service"] == {
        "name": "fairlead-router",
        "port": {"name": service["spec"]["ports"][0]["name"]},
    }
    route = find(manifests, "HTTPRoute", "fairlead-router")["spec"]
    assert route["parentRefs"] == [{"name": "gateway", "namespace": "gateways"}]
    assert route["rules"][0]["backendRefs"] == [{"name": "fairlead-router", "port": 8080}]
    assert route["rules"][0]["timeouts"] == {"request": "0s"}


def test_ingress_without_hosts_takes_every_host(render: Render) -> None:
    rules = find(render(router={"ingress": {"enabled": True}}), "Ingress", "fairlead-router")["spec"]["rules"]
    assert len(rules) == 1
    assert "host" not in rules[0]


def test_ingress_has_each_path_for_each_host(render: Render) -> None:
    paths = [{"path": "/v1", "pathType": "Prefix"}, {"path": "/health", "pathType": "Exact"}]
    hosts = ["models.example.com", "llm.example.com"]
    manifests = render(router={"ingress": {"enabled": True, "hosts": hosts, "paths": paths}})

    rules = find(manifests, "Ingress", "fairlead-router")["spec"]["rules"]

    assert [rule["host"] for rule in rules] == hosts
    for rule in rules:
        found = [{name: each[name] for name in ("path", "pathType")} for each in rule["http"]["paths"]]
        assert found == paths


def test_ingress_leads_everything_to_the_router_by_default(render: Render) -> None:
    rules = find(render(router={"ingress": {"enabled": True}}), "Ingress", "fairlead-router")["spec"]["rules"]
    (path,) = rules[0]["http"]["paths"]
    assert (path["path"], path["pathType"]) == ("/", "Prefix")


def test_pod_monitors_cover_operator_router_and_the_engines_of_all_namespaces(render: Render) -> None:
    manifests = render(podMonitors={"enabled": True, "labels": {"release": "prometheus"}})
    for component in ("operator", "router"):
        monitor = find(manifests, "PodMonitor", f"fairlead-{component}")
        assert monitor["metadata"]["labels"]["release"] == "prometheus"
        monitored = find(manifests, "Deployment", f"fairlead-{component}")["spec"]
        assert monitor["spec"]["selector"] == monitored["selector"]
        (scrape,) = monitor["spec"]["podMetricsEndpoints"]
        assert scrape["port"] in [port["name"] for port in container(manifests, component)["ports"]]
        # Their own labels `namespace` and `name` are those of LLMDeployments.
        assert scrape["honorLabels"] is True
    engines = find(manifests, "PodMonitor", "fairlead-engines")["spec"]
    assert engines["namespaceSelector"] == {"any": True}
    assert engines["selector"]["matchLabels"].items() <= selector("any").items()


def metrics_of(root: Path, *snapshots: str) -> set[str]:
    """Return the names in the snapshots of metrics."""
    return {
        line.split()[0] for name in snapshots for line in (root / "tests" / name).read_text().splitlines()
    }


def test_engines_can_export_no_series_of_other_components_and_not_any_number(
    render: Render, root: Path
) -> None:
    monitor = find(render(podMonitors={"enabled": True}), "PodMonitor", "fairlead-engines")["spec"]
    (scrape,) = monitor["podMetricsEndpoints"]
    (kept,) = scrape["metricRelabelings"]
    own = metrics_of(root, "server/snapshots/engine_metrics.txt")
    others = metrics_of(
        root, "router/snapshots/router_metrics.txt", "operator/snapshots/operator_metrics.txt"
    )

    assert (kept["sourceLabels"], kept["action"]) == (["__name__"], "keep")
    assert all(re.fullmatch(kept["regex"], name) for name in own)
    # Those of any process have the labels of the pod.
    forged = {name for name in others if re.fullmatch(kept["regex"], name)}
    assert {name for name in forged if not name.startswith(("process_", "python_"))} == set()
    assert not scrape.get("honorLabels")
    assert monitor["sampleLimit"] == 5000
    assert {"labelLimit", "labelNameLengthLimit", "labelValueLengthLimit"} <= monitor.keys()


def test_engines_are_monitored_in_the_watched_namespaces(render: Render) -> None:
    monitor = find(render(**EVERY_VALUE), "PodMonitor", "fairlead-engines")["spec"]
    assert monitor["namespaceSelector"] == {"matchNames": ["team-a", "team-b"]}


def test_alerts_and_dashboards_are_those_of_the_files(render: Render, root: Any) -> None:
    manifests = render(**EVERY_VALUE)
    files = root / "charts/fairlead/files"
    rules = find(manifests, "PrometheusRule", "fairlead")
    assert rules["spec"] == yaml.safe_load((files / "rules.yaml").read_text())
    assert rules["metadata"]["labels"]["release"] == "prometheus"
    dashboards = [one for one in manifests if "grafana_dashboard" in one["metadata"]["labels"]]
    rendered = {name: json.loads(text) for one in dashboards for name, text in one["data"].items()}
    assert rendered
    assert rendered == {
        path.name: json.loads(path.read_text()) for path in (files / "dashboards").glob("*.json")
    }
    assert {one["metadata"]["annotations"]["grafana_folder"] for one in dashboards} == {"Fairlead"}


def test_network_policies_admit_operator_router_and_further_peers(render: Render) -> None:
    more = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    manifests = render(networkPolicies={"enabled": True, "allowFrom": [more]})
    files = find(manifests, "ConfigMap", "fairlead-operator-files")["data"]
    operator, router, further = yaml.safe_load(files["network-peers.yaml"])
    for peer, component in ((operator, "operator"), (router, "router")):
        assert (
            peer["podSelector"] == find(manifests, "Deployment", f"fairlead-{component}")["spec"]["selector"]
        )
        namespace = peer["namespaceSelector"]["matchLabels"]
        assert namespace == {"kubernetes.io/metadata.name": "fairlead-system"}
    assert further == more


@pytest.mark.parametrize("component", ["operator", "router"])
def test_network_policies_of_the_release_admit_peers_to_the_ports_on_which_it_listens(
    render: Render, component: str
) -> None:
    more = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    manifests = render(networkPolicies={"enabled": True, "allowFrom": [more]})
    policy = find(manifests, "NetworkPolicy", f"fairlead-{component}")["spec"]
    deployment = find(manifests, "Deployment", f"fairlead-{component}")["spec"]
    listening = {port["name"]: port["containerPort"] for port in container(manifests, component)["ports"]}
    admitted = {port["port"]: rule.get("from") for rule in policy["ingress"] for port in rule["ports"]}
    selectors = {
        name: find(manifests, "Deployment", f"fairlead-{name}")["spec"]["selector"]
        for name in ("operator", "router")
    }

    assert policy["podSelector"] == deployment["selector"]
    # The kubelet alone asks for health; it is on the node.
    assert admitted.keys() == {port for name, port in listening.items() if name != "health"}
    if component == "operator":
        assert admitted == {listening["metrics"]: [more]}
    else:
        peers = [{"podSelector": selectors[name]} for name in ("operator", "router")]
        assert admitted == {listening["http"]: None, listening["metrics"]: [*peers, more]}


def test_nobody_is_admitted_to_the_operator_without_further_peers(render: Render) -> None:
    policy = find(render(networkPolicies={"enabled": True}), "NetworkPolicy", "fairlead-operator")["spec"]
    assert policy["policyTypes"] == ["Ingress"]
    assert "ingress" not in policy


def test_a_changed_profile_restarts_the_operator(render: Render) -> None:
    def checksum(gpus: int) -> str:
        manifests = render(profiles={"l4": {"resources": {"gpu": gpus}}})
        return str(pod_of(manifests, "operator")["metadata"]["annotations"]["checksum/files"])

    assert checksum(1) == checksum(1)
    assert checksum(1) != checksum(2)


def test_flags_of_files_name_what_the_operators_config_map_has(render: Render) -> None:
    manifests = render(**EVERY_VALUE)
    files = find(manifests, "ConfigMap", "fairlead-operator-files")["data"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container(manifests, "operator")["volumeMounts"]}
    flags = dict(flag.split("=", 1) for flag in arguments(manifests, "operator") if "=" in flag)
    for flag, name in (
        ("--profiles-file", "profiles.yaml"),
        ("--pod-policy-file", "pod-policy.yaml"),
        ("--network-peers-file", "network-peers.yaml"),
    ):
        assert flags[flag] == f"{mounts['files']}/{name}"
        assert yaml.safe_load(files[name])
    assert yaml.safe_load(files["profiles.yaml"]) == EVERY_VALUE["profiles"]
    assert flags["--engine-image-pull-secret"] == "engines"


def test_values_of_the_chart_may_have_each_field_of_the_policy_and_no_other(root: Path) -> None:
    schema = json.loads((root / "charts/fairlead/values.schema.json").read_text())
    fields = {field.encode_name for field in msgspec.structs.fields(PodPolicy)}
    assert schema["definitions"]["podPolicy"]["properties"].keys() == fields


def test_the_operator_reads_the_files_of_its_config_map(render: Render, tmp_path: Path) -> None:
    files = find(render(**EVERY_VALUE), "ConfigMap", "fairlead-operator-files")["data"]
    for name, content in files.items():
        (tmp_path / name).write_text(content)

    assert read_profiles(tmp_path / "profiles.yaml") == EVERY_VALUE["profiles"]
    policy = read_pod_policy(tmp_path / "pod-policy.yaml")
    assert json.loads(msgspec.json.encode(policy)) == EVERY_VALUE["podPolicy"]
    peers = flags.read_network_peers(str(tmp_path / "network-peers.yaml"))
    assert peers[-1:] == tuple(EVERY_VALUE["networkPolicies"]["allowFrom"])
    assert len(peers) == 3


def test_without_profiles_and_network_policies_there_is_no_file(render: Render) -> None:
    manifests = render()
    assert "ConfigMap" not in kinds(manifests)
    assert not any("-file=" in flag for flag in arguments(manifests, "operator"))


def test_the_test_of_a_release_is_a_confined_pod_that_asks_the_router(render: Render) -> None:
    (pod,) = [one for one in render(tests=True, **EVERY_VALUE) if one["kind"] == "Pod"]
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    (request,) = pod["spec"]["containers"]
    assert request["securityContext"]["readOnlyRootFilesystem"] is True
    environment = {one["name"]: one.get("value", one.get("valueFrom")) for one in request["env"]}
    assert environment["ROUTER"] == "http://fairlead-router:8080"
    assert environment["MODEL"] == "smollm2"
    assert environment["API_KEY"] == {"secretKeyRef": {"name": "caller", "key": "key"}}
