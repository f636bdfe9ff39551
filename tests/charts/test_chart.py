"""The chart and the plain manifests that are rendered from it."""

import re
import shutil
import subprocess
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart_manifests import DIGEST, EVERY_VALUE, SET_IMAGE, YAML_LOADER, arguments, find, kinds, names, pods
from llm_operator import crd
from llm_operator.api.profiles import read_profiles
from llm_operator.api.spec import parse

from charts import values_page
from engine_server.contract.base.version import VERSION
from engine_server.contract.cluster.labels import METRICS_PORT

Manifest = dict[str, Any]
Render = Callable[..., list[Manifest]]
Helm = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(params=[{}, EVERY_VALUE], ids=["defaults", "every value"])
def manifests(request: pytest.FixtureRequest, render: Render) -> list[Manifest]:
    return render(**request.param)


def test_helm_lint_finds_nothing(helm: Helm, root: Path) -> None:
    result = helm("lint", "--strict", root / "charts" / "fairlead", SET_IMAGE)
    assert result.returncode == 0, result.stdout + result.stderr


def test_chart_package_and_image_have_the_same_version(root: Path) -> None:
    chart = yaml.safe_load((root / "charts/fairlead/Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (VERSION, VERSION)
    assert f"\nARG VERSION={VERSION}\n" in (root / "Dockerfile").read_text()


def test_rbac_lists_verbs_and_kinds_one_by_one(manifests: list[Manifest]) -> None:
    rules = [rule for m in manifests if m["kind"] in ("Role", "ClusterRole") for rule in m["rules"]]
    assert rules
    for rule in rules:
        assert {"apiGroups", "resources", "verbs"} <= set(rule)
        assert not any("*" in word for words in rule.values() for word in words)
        assert not {"roles", "clusterroles", "pods/exec"} & set(rule["resources"])
        assert "secrets" not in rule["resources"] or rule["resourceNames"]
        assert not {"escalate", "bind", "impersonate"} & set(rule["verbs"])


def test_pods_meet_the_restricted_pod_security_standard(manifests: list[Manifest]) -> None:
    for pod in pods(manifests):
        context = pod["securityContext"]
        assert context["runAsNonRoot"] is True
        assert context["runAsUser"] > 0
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert {next(iter(set(volume) - {"name"})) for volume in pod["volumes"]} <= {
            "configMap",
            "emptyDir",
            "secret",
        }
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


def test_selectors_contain_nothing_that_an_upgrade_changes(manifests: list[Manifest]) -> None:
    for manifest in manifests:
        if manifest["kind"] == "Deployment":
            labels = manifest["spec"]["selector"]["matchLabels"]
            assert {key.removeprefix("app.kubernetes.io/") for key in labels} == {
                "name",
                "instance",
                "component",
            }
            assert labels.items() <= manifest["spec"]["template"]["metadata"]["labels"].items()


def test_another_version_of_the_chart_restarts_no_pod(helm: Helm, root: Path, tmp_path: Path) -> None:
    chart = shutil.copytree(root / "charts/fairlead", tmp_path / "fairlead")
    about = yaml.safe_load((chart / "Chart.yaml").read_text())

    def templates(version: str) -> dict[str, Any]:
        (chart / "Chart.yaml").write_text(yaml.safe_dump(about | {"version": version, "appVersion": version}))
        rendered = helm("template", "fairlead", chart, "--set=image.tag=mine").stdout
        objects = filter(None, yaml.load_all(rendered, YAML_LOADER))
        deployments = [one for one in objects if one["kind"] == "Deployment"]
        return {one["metadata"]["name"]: one["spec"]["template"] for one in deployments}

    assert templates("8.0.0") == templates("9.0.0")


def test_every_object_has_the_recommended_labels(manifests: list[Manifest]) -> None:
    for manifest in manifests:
        labels = manifest["metadata"]["labels"]
        assert labels["app.kubernetes.io/name"] == "fairlead"
        assert labels["app.kubernetes.io/managed-by"] == "Helm"


def test_crd_matches_the_spec_and_is_kept_on_uninstall(manifests: list[Manifest]) -> None:
    definition = find(manifests, "CustomResourceDefinition", "llmdeployments.fairlead.dev")
    assert definition["spec"] == crd.crd()["spec"]
    assert definition["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_only_the_crd_is_kept(manifests: list[Manifest]) -> None:
    kept = [m["kind"] for m in manifests if "helm.sh/resource-policy" in m["metadata"].get("annotations", {})]
    assert kept == ["CustomResourceDefinition"]


def test_generated_files_are_current(helm: Helm, root: Path) -> None:
    definition = yaml.load((root / "charts/fairlead/files/llmdeployment-crd.yaml").read_text(), YAML_LOADER)
    assert definition == crd.crd()
    values = root / "manifests/values.yaml"
    release = ["fairlead", root / "charts/fairlead", "--namespace", "fairlead-system", "--values", values]
    rendered = helm("template", *release, "--skip-tests").stdout
    plain = (root / "manifests/fairlead.yaml").read_text()
    of_file, of_chart = (list(yaml.load_all(text, YAML_LOADER)) for text in (plain, rendered))
    assert of_file == of_chart, "run `make manifests`"


def test_crd_can_be_left_out(render: Render) -> None:
    assert "CustomResourceDefinition" not in kinds(render(crd={"install": False}))


def test_watches_all_namespaces_by_default(render: Render) -> None:
    manifests = render()
    own = {f"fairlead-operator-{part}" for part in ("keys", "lease", "routers")}
    assert names(manifests, "Role") == names(manifests, "RoleBinding") == own
    assert not any(flag.startswith("--namespace") for flag in arguments(manifests, "operator"))
    assert not any(flag.startswith("--namespace") for flag in arguments(manifests, "router"))


def test_chosen_namespaces_need_no_cluster_wide_rights(render: Render) -> None:
    manifests = render(watchNamespaces=["team-a", "team-b"], rbac={"aggregateToDefaultRoles": False})
    assert not {"ClusterRole", "ClusterRoleBinding"} & kinds(manifests)
    for component in ("operator", "router"):
        for kind in ("Role", "RoleBinding"):
            where = {
                m["metadata"]["namespace"]
                for m in manifests
                if m["kind"] == kind and m["metadata"]["name"] == f"fairlead-{component}"
            }
            assert {"team-a", "team-b"} <= where
        flags = arguments(manifests, component)
        assert [flag for flag in flags if flag.startswith("--namespace")] == [
            "--namespace=team-a",
            "--namespace=team-b",
        ]


def test_bindings_name_accounts_that_exist(manifests: list[Manifest]) -> None:
    accounts = {m["metadata"]["name"] for m in manifests if m["kind"] == "ServiceAccount"}
    assert accounts == {pod["serviceAccountName"] for pod in pods(manifests)}
    for manifest in manifests:
        if manifest["kind"].endswith("RoleBinding"):
            assert {subject["name"] for subject in manifest["subjects"]} <= accounts
            assert {subject["namespace"] for subject in manifest["subjects"]} == {"fairlead-system"}


@pytest.mark.parametrize("command", ["template", "install"])
def test_without_an_image_nothing_is_rendered(helm: Helm, root: Path, command: str) -> None:
    flags = ["--dry-run=client"] if command == "install" else []

    result = helm(command, "fairlead", root / "charts/fairlead", *flags)

    assert result.returncode != 0
    assert "image.repository is not set, and no image of Fairlead is published" in result.stderr


def test_image_is_chosen_by_tag_or_digest(render: Render) -> None:
    tagged = render(image={"repository": "fairlead", "tag": "dev"})
    assert {c["image"] for pod in pods(tagged) for c in pod["containers"]} == {"fairlead:dev"}
    assert "--engine-image=fairlead:dev" in arguments(tagged, "operator")
    pinned = render(
        image={"repository": "fairlead", "tag": "dev", "digest": DIGEST}, engine={"image": "engine:2"}
    )
    assert {c["image"] for pod in pods(pinned) for c in pod["containers"]} == {f"fairlead@{DIGEST}"}
    assert "--engine-image=engine:2" in arguments(pinned, "operator")


def test_pod_security_is_lowered_by_a_value(render: Render) -> None:
    assert not any("--pod-security" in argument for argument in arguments(render(), "operator"))
    assert "--pod-security=any" in arguments(render(engine={"podSecurity": "any"}), "operator")


def test_the_operator_can_read_the_profiles_of_the_values(render: Render, tmp_path: Path) -> None:
    profiles = {"gpu-l4": {"resources": {"gpu": 1}, "podTemplate": {"spec": {"nodeSelector": {"a": "b"}}}}}

    rendered = find(render(profiles=profiles), "ConfigMap", "fairlead-operator-files")

    file = tmp_path / "profiles.yaml"
    file.write_text(rendered["data"]["profiles.yaml"])
    assert read_profiles(file) == profiles


def test_placement_values_reach_the_pods(render: Render) -> None:
    pod = find(render(**EVERY_VALUE), "Deployment", "fairlead-operator")["spec"]["template"]
    assert pod["metadata"]["annotations"].items() >= {"a": "b"}.items()
    assert pod["metadata"]["labels"]["team"] == "ml"
    assert pod["spec"]["nodeSelector"] == {"pool": "cpu"}
    assert pod["spec"]["tolerations"] == [{"key": "pool", "operator": "Exists"}]
    assert pod["spec"]["affinity"] == {"nodeAffinity": {}}
    assert pod["spec"]["priorityClassName"] == "system-cluster-critical"
    assert pod["spec"]["imagePullSecrets"] == [{"name": "registry"}]


def test_metrics_of_the_router_are_not_on_its_service(render: Render) -> None:
    manifests = render()
    container = find(manifests, "Deployment", "fairlead-router")["spec"]["template"]["spec"]["containers"][0]
    assert {"name": "metrics", "containerPort": METRICS_PORT} in container["ports"]
    assert f"--metrics-port={METRICS_PORT}" in container["args"]
    assert "metrics" not in [
        port["name"] for port in find(manifests, "Service", "fairlead-router")["spec"]["ports"]
    ]


def test_router_policy_follows_its_values(render: Render) -> None:
    assert {"--policy=prefix", "--prefix-chars=100"} <= set(arguments(render(), "router"))
    every = {"--policy=session", "--prefix-chars=200", "--forward-header=x-team-*"}
    assert every <= set(arguments(render(**EVERY_VALUE), "router"))


def test_router_holds_requests_as_its_values_say(render: Render) -> None:
    flags = arguments(render(), "router")
    assert "--hold-requests=1024" in flags and "--hold-seconds=900" in flags
    assert "--queue-when-full" not in flags
    chosen = arguments(render(**EVERY_VALUE), "router")
    assert {"--hold-requests=10", "--hold-seconds=60", "--queue-when-full"} <= {*chosen}


def test_router_service_follows_its_values(render: Render) -> None:
    service = find(render(), "Service", "fairlead-router")["spec"]
    assert service["type"] == "ClusterIP"
    assert service["ports"] == [{"name": "http", "port": 80, "targetPort": "http"}]
    open_service = find(render(**EVERY_VALUE), "Service", "fairlead-router")["spec"]
    assert open_service["type"] == "LoadBalancer"
    assert open_service["loadBalancerClass"] == "example.com/lb"
    assert open_service["loadBalancerSourceRanges"] == ["203.0.113.0/24"]
    assert open_service["externalTrafficPolicy"] == "Local"
    assert open_service["ports"] == [{"name": "http", "port": 8080, "targetPort": "http", "nodePort": 30080}]


def test_router_is_killed_only_after_its_pre_stop_and_its_drain(render: Render) -> None:
    grace, timeout = 30, 300
    manifests = render(router={"drainGraceSeconds": grace, "drainTimeoutSeconds": timeout})
    pod = find(manifests, "Deployment", "fairlead-router")["spec"]["template"]["spec"]
    pre_stop = pod["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pre_stop == grace
    assert {f"--drain-grace={grace}", f"--drain-timeout={timeout}"} <= set(arguments(manifests, "router"))
    assert pod["terminationGracePeriodSeconds"] == pre_stop + grace + timeout + 15


def test_router_without_a_drain_grace_has_no_pre_stop(render: Render) -> None:
    manifests = render(router={"drainGraceSeconds": 0, "drainTimeoutSeconds": 60})
    pod = find(manifests, "Deployment", "fairlead-router")["spec"]["template"]["spec"]
    assert "lifecycle" not in pod["containers"][0]
    assert pod["terminationGracePeriodSeconds"] == 75


def test_router_asks_callers_for_no_keys_by_default(render: Render) -> None:
    manifests = render()
    flags = " ".join(arguments(manifests, "router"))
    assert not any(flag in flags for flag in ("--keys-file", "--peers-service", "--require-internal-key"))


def test_credentials_of_clients_are_forwarded_only_where_engines_get_no_key(
    render: Render, helm: Helm, root: Path
) -> None:
    forwards = {"router": {"forwardCredentials": True}}
    assert "--forward-credentials" not in arguments(render(), "router")
    assert "--forward-credentials" in arguments(render(keys={"enabled": False}, **forwards), "router")

    settings = [SET_IMAGE, "--set=router.forwardCredentials=true"]
    result = helm("template", "fairlead", root / "charts/fairlead", *settings)

    assert result.returncode != 0
    assert "router.forwardCredentials needs keys.enabled=false" in result.stderr


def test_operator_finds_every_router_by_a_headless_service(render: Render) -> None:
    manifests = render()
    service = find(manifests, "Service", "fairlead-router-peers")
    # Routers that drain have requests, and those that start may get some before the operator lists them again.
    assert service["spec"]["publishNotReadyAddresses"]
    namespace = service["metadata"]["namespace"]
    assert f"--router-service={namespace}/fairlead-router-peers" in arguments(manifests, "operator")


def test_router_reads_keys_from_mounted_secrets(render: Render) -> None:
    manifests = render(**EVERY_VALUE)
    pod = find(manifests, "Deployment", "fairlead-router")["spec"]["template"]["spec"]
    secrets = {v["name"]: v["secret"]["secretName"] for v in pod["volumes"] if "secret" in v}
    assert secrets == {"keys": "callers", "router-key": "router-root"}
    mounts = {mount["name"]: mount for mount in pod["containers"][0]["volumeMounts"]}
    flags = arguments(manifests, "router")
    for name, flag in (("keys", "--keys-file={}/callers.yaml"), ("router-key", "--engine-key-file={}/keys")):
        # A Secret that is mounted with a subPath is not updated.
        assert mounts[name]["readOnly"] and "subPath" not in mounts[name]
        assert flag.format(mounts[name]["mountPath"]) in flags


def test_routers_with_keys_find_each_other_by_a_headless_service(render: Render) -> None:
    manifests = render(**EVERY_VALUE)
    peers = find(manifests, "Service", "fairlead-router-peers")["spec"]
    assert peers["clusterIP"] == "None" and peers["publishNotReadyAddresses"]
    assert peers["selector"] == find(manifests, "Service", "fairlead-router")["spec"]["selector"]
    assert peers["ports"][0]["port"] == 9090
    assert "--peers-service=fairlead-router-peers" in arguments(manifests, "router")


# What the schema says about each.
INVALID_SETTINGS = {
    "router.replica=2": "'/router': additional properties 'replica' not allowed",
    "router.replicas=-1": "'/router/replicas': minimum",
    "router.drainGraceSeconds=-1": "'/router/drainGraceSeconds': minimum",
    "router.drainTimeoutSeconds=1m": "'/router/drainTimeoutSeconds': got string",
    "image.digest=latest": "'/image/digest': 'latest' does not match",
    "router.policy=fastest": "'/router/policy': value must be one of",
    "engine.podSecurity=privileged": "'/engine/podSecurity': value must be one of",
    "router.hold.seconds=-1": "'/router/hold/seconds': minimum",
    "router.keysSecret.key=a/b": "'/router/keysSecret/key': 'a/b' does not match",
    "replicas=2": "'': additional properties 'replicas' not allowed",
    "watchNamespaces={Team_A}": "'/watchNamespaces/0': 'Team_A' does not match",
    "router.serviceAccount.create=false": "'/router/serviceAccount/name': minLength",
    "router.httpRoute.enabled=true": "'/router/httpRoute/parentRefs': minItems",
    "router.service.externalTrafficPolicy=local": "'/router/service/externalTrafficPolicy': value must be one of",
    "profiles.gpu-l4.replicas=2": "'/profiles/gpu-l4': additional properties 'replicas' not allowed",
    "networkPolicies.allowFrom[0].pods=x": "'/networkPolicies/allowFrom/0': additional properties 'pods'",
    "podMonitors.interval=15": "'/podMonitors/interval': got number",
    "serviceMonitors.interval=15": "'/serviceMonitors/interval': got number",
    "router.ingress.paths[0].path=v1": "'/router/ingress/paths/0/path': 'v1' does not match",
}


def test_values_schema_refuses_each_invalid_setting(helm: Helm, root: Path) -> None:
    settings = [f"--set={setting}" for setting in INVALID_SETTINGS]

    result = helm("template", "fairlead", root / "charts/fairlead", SET_IMAGE, *settings)

    assert result.returncode != 0
    assert not [words for words in INVALID_SETTINGS.values() if f"- at {words}" not in result.stderr]


def test_values_schema_covers_every_value(root: Path) -> None:
    values = yaml.safe_load((root / "charts/fairlead/values.yaml").read_text())
    schema = yaml.safe_load((root / "charts/fairlead/values.schema.json").read_text())

    def check(value: Any, node: dict[str, Any], where: str) -> None:
        of_every_chart = {"global", "enabled"} if node is schema else set()
        assert value.keys() == node["properties"].keys() - of_every_chart, where
        for key, inner in value.items():
            if isinstance(inner, dict) and "properties" in node["properties"][key]:
                check(inner, node["properties"][key], f"{where}.{key}")

    check(values, schema, "values")


def secrets(manifests: list[Manifest], component: str) -> dict[str, str]:
    """Return the Secrets that a component mounts, by the name of the volume."""
    pod = find(manifests, "Deployment", f"fairlead-{component}")["spec"]["template"]["spec"]
    return {each["name"]: each["secret"]["secretName"] for each in pod["volumes"] if "secret" in each}


def test_root_keys_are_left_to_the_operator_so_that_every_rendering_is_the_same(render: Render) -> None:
    manifests = render()
    names = ["fairlead-router-key", "fairlead-admin-key"]

    assert render(keys={"enabled": True}) == manifests
    for name in names:
        assert find(manifests, "Secret", name).keys() == {"apiVersion", "kind", "metadata"}
    assert find(manifests, "Role", "fairlead-operator-keys")["rules"] == [
        {"apiGroups": [""], "resources": ["secrets"], "resourceNames": names, "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["secrets"], "resourceNames": names, "verbs": ["patch"]},
    ]
    assert secrets(manifests, "router") == {"router-key": "fairlead-router-key"}
    assert secrets(manifests, "operator") == {}
    given = {f"--{role}-key-secret=fairlead-{role}-key" for role in ("router", "admin")}
    assert given <= set(arguments(manifests, "operator"))


def test_given_root_keys_are_used_and_only_read(render: Render) -> None:
    manifests = render(keys={"routerSecret": "one", "adminSecret": "two"})

    assert {"--router-key-secret=one", "--admin-key-secret=two"} <= set(arguments(manifests, "operator"))
    assert secrets(manifests, "router") == {"router-key": "one"}
    assert "Secret" not in kinds(manifests)
    (rule,) = find(manifests, "Role", "fairlead-operator-keys")["rules"]
    assert (rule["resourceNames"], rule["verbs"]) == (["one", "two"], ["get"])


def test_without_keys_there_is_the_root_key_of_the_admin_api_alone(render: Render) -> None:
    manifests = render(keys={"enabled": False})
    assert [each["metadata"]["name"] for each in manifests if each["kind"] == "Secret"] == [
        "fairlead-admin-key"
    ]
    for rule in find(manifests, "Role", "fairlead-operator-keys")["rules"]:
        assert rule["resourceNames"] == ["fairlead-admin-key"]
    keys = [argument for argument in arguments(manifests, "operator") if "key" in argument]
    assert keys == ["--admin-key-secret=fairlead-admin-key"]
    assert secrets(manifests, "router") == {}


@pytest.mark.parametrize("settings", [[], ["--set=watchNamespaces={team-a}"]], ids=["all namespaces", "one"])
def test_notes_have_a_complete_example_and_refer_to_no_file(
    helm: Helm, root: Path, settings: list[str]
) -> None:
    release = ["fairlead", root / "charts/fairlead", "--namespace", "fairlead-system"]
    result = helm("install", *release, "--dry-run=client", SET_IMAGE, *settings)
    assert result.returncode == 0, result.stderr
    notes = result.stdout.partition("NOTES:")[2]
    manifest = textwrap.dedent(notes.partition("<<EOF\n")[2].partition("     EOF\n")[0])
    assert parse(yaml.safe_load(manifest)).name == "smollm2"
    assert "manifests/" not in notes and ".yaml" not in notes
    assert notes.count("--namespace team-a") == (2 if settings else 0)


def test_readme_of_the_chart_is_current(root: Path) -> None:
    assert (root / "charts/fairlead/README.md").read_text() == values_page.page(), "run `make manifests`"


def test_readme_of_the_chart_has_every_value(root: Path) -> None:
    readme = (root / "charts/fairlead/README.md").read_text()
    listed = re.findall(r"^\| `([\w.]+)` \|", readme, re.MULTILINE)
    schema = yaml.safe_load((root / "charts/fairlead/values.schema.json").read_text())
    values = yaml.safe_load((root / "charts/fairlead/values.yaml").read_text())

    def leaves(values: Manifest, node: Manifest, parent: str) -> Iterator[str]:
        for name, value in values.items():
            found = values_page.resolve(node["properties"][name], schema)
            if value and "properties" in found:
                yield from leaves(value, found, f"{parent}{name}.")
            else:
                yield parent + name

    assert set(leaves(values, schema, "")) <= set(listed)
    assert len(listed) == len(set(listed))


@pytest.mark.parametrize(
    ("settings", "said", "unsaid"),
    [
        (
            [],
            ["Anyone who reaches the router", "Engines answer to the router alone"],
            ["$KEY", "past the router"],
        ),
        (
            ["--set=router.keysSecret.name=callers"],
            ["the Secret callers", "Bearer $KEY"],
            ["Anyone who reaches"],
        ),
        (["--set=keys.enabled=false"], ["past the router: keys.enabled is false"], ["Engines answer"]),
        (["--set=networkPolicies.enabled=true"], [], ["Every pod of the cluster"]),
    ],
    ids=["defaults", "keys of callers", "engines without keys", "network policies"],
)
def test_notes_say_who_may_call_what(
    helm: Helm, root: Path, settings: list[str], said: list[str], unsaid: list[str]
) -> None:
    result = helm("install", "fairlead", root / "charts/fairlead", "--dry-run=client", SET_IMAGE, *settings)
    notes = result.stdout.partition("NOTES:")[2]
    assert [text for text in said if text not in notes] == []
    assert [text for text in unsaid if text in notes] == []


def permissions(rules: list[Manifest]) -> set[tuple[str, str, str]]:
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def listed_permissions(text: str) -> set[tuple[str, str, str]]:
    """Return those in a table with the columns group, resources and verbs; remarks are in parentheses."""
    rows = re.findall(r"^\| (core|`[\w.]+\.\w+`|`\w+`) \| (`[^|]+) \| ([^|(]+)", text, re.MULTILINE)
    return {
        ("" if group == "core" else group.strip("`"), resource.strip(" `"), verb.strip())
        for group, resources, verbs in rows
        for resource in resources.split(",")
        for verb in verbs.split(",")
    }


def test_documented_permissions_are_those_of_the_roles(render: Render, root: Path) -> None:
    text = (root / "docs/api.md").read_text().partition("Its permissions")[2].partition("\n## ")[0]
    operator, _, router = text.partition("Those of the router")
    manifests = render()
    for component, table in (("operator", operator), ("router", router)):
        rules = find(manifests, "ClusterRole", f"fairlead-{component}-fairlead-system")["rules"]
        assert listed_permissions(table) == permissions(rules)
