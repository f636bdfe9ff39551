"""Deployments from a real API server."""

import yaml
from kubernetes_objects import endpoint, llmd, slice_of

from engine_server.router.routing.policies.round_robin import RoundRobin
from engine_server.router.sources.kubernetes.access import from_kubeconfig


async def test_follows_deployments_and_slices_of_a_cluster(api_server, cluster, follow, eventually):
    apply, delete, (red, blue) = cluster
    apply(red, llmd("a", "first", policy="round_robin"))
    apply(red, slice_of("a", "a-1", endpoint("10.0.0.1", ready=True, serving=True, terminating=False)))
    everywhere = await follow(from_kubeconfig(api_server.kubeconfig))
    blue_only = await follow(from_kubeconfig(api_server.kubeconfig), blue)
    assert everywhere.live("first") == everywhere.live(f"{red}/a") == ["http://10.0.0.1:8000"]
    assert isinstance(everywhere.directory.resolve("first").policy, RoundRobin)
    assert blue_only.live("first") is None

    apply(red, slice_of("a", "a-2", endpoint("10.0.0.2")))  # a second slice of the same deployment
    await eventually(lambda: everywhere.live("first") == ["http://10.0.0.1:8000", "http://10.0.0.2:8000"])
    apply(red, slice_of("a", "a-1", endpoint("10.0.0.1", ready=False, serving=True, terminating=True)))
    await eventually(lambda: everywhere.live("first") == ["http://10.0.0.2:8000"])

    delete(red, "endpointslice", "a-2")
    await eventually(lambda: everywhere.live("first") == [])
    apply(red, llmd("a", "second"))
    await eventually(lambda: everywhere.live("first") is None and everywhere.live("second") == [])
    apply(blue, llmd("b", "first"), slice_of("b", "b-1", endpoint("10.0.1.1")))
    await eventually(lambda: everywhere.live("first") == blue_only.live("first") == ["http://10.0.1.1:8000"])
    delete(red, "llmdeployment", "a")
    await eventually(lambda: everywhere.live("second") is None)


async def test_follows_each_of_several_namespaces(api_server, cluster, follow):
    apply, _, namespaces = cluster
    for namespace in namespaces:
        apply(namespace, llmd("a"))
    everywhere = await follow(from_kubeconfig(api_server.kubeconfig), *namespaces)
    assert [everywhere.live(f"{namespace}/a") for namespace in namespaces] == [[], []]


def rights_of(account_namespace: str) -> list[dict]:
    """Return a role that may read what a router reads, and its binding to the account `router` of a namespace."""
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "router"}
    verbs = ["list", "watch"]
    return [
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": {"name": "router"},
            "rules": [
                {"apiGroups": ["fairlead.dev"], "resources": ["llmdeployments"], "verbs": verbs},
                {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": verbs},
            ],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "router"},
            "roleRef": role,
            "subjects": [{"kind": "ServiceAccount", "name": "router", "namespace": account_namespace}],
        },
    ]


async def test_namespace_that_may_not_be_read_delays_no_other_and_is_followed_once_it_may(
    api_server, cluster, follow, eventually
):
    apply, _, (red, blue) = cluster
    apply(red, llmd("a"))
    apply(blue, llmd("b"))
    rights = rights_of(red)
    apply(red, *rights, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "router"}})
    token = api_server.kubectl("create", "token", "router", "-n", red).stdout.strip()
    config = yaml.safe_load(api_server.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token}
    file = api_server.kubeconfig.with_name(f"router-of-{red}")
    file.write_text(yaml.safe_dump(config))
    followed = await follow(from_kubeconfig(file), red, blue)
    assert followed.live(f"{red}/a") == []
    assert followed.live(f"{blue}/b") is None
    failures = {state.namespace: state.failures for state in followed.source.watches()}
    assert failures[blue] > 0
    apply(blue, *rights)
    await eventually(lambda: followed.live(f"{blue}/b") == [])
