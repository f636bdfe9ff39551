"""Deployments from a real API server."""

from api_server import kubeconfig_of
from fake_api import event
from kubernetes_objects import endpoint, llmd, slice_of

from engine_server.router.routing.policies.round_robin import RoundRobin
from engine_server.router.sources.kubernetes.access import Access, from_kubeconfig


async def test_follows_deployments_and_slices_of_a_cluster(api_server, namespaces, follow, eventually):
    red, blue = namespaces
    a, b = f"a-{red.namespace}", f"b-{red.namespace}"
    first, second = f"first-{red.namespace}", f"second-{red.namespace}"
    red.apply(llmd(a, first, policy="round_robin"))
    red.apply(slice_of(a, "a-1", endpoint("10.0.0.1", ready=True, serving=True, terminating=False)))
    everywhere = await follow(from_kubeconfig(api_server.kubeconfig))
    blue_only = await follow(from_kubeconfig(api_server.kubeconfig), blue.namespace)
    assert everywhere.live(first) == everywhere.live(f"{red.namespace}/{a}") == ["http://10.0.0.1:8000"]
    assert isinstance(everywhere.directory.resolve(first).policy, RoundRobin)
    assert blue_only.live(first) is None

    red.apply(slice_of(a, "a-2", endpoint("10.0.0.2")))  # a second slice of the same deployment
    await eventually(lambda: everywhere.live(first) == ["http://10.0.0.1:8000", "http://10.0.0.2:8000"])
    red.apply(slice_of(a, "a-1", endpoint("10.0.0.1", ready=False, serving=True, terminating=True)))
    await eventually(lambda: everywhere.live(first) == ["http://10.0.0.2:8000"])

    red.delete("endpointslice", "a-2")
    await eventually(lambda: everywhere.live(first) == [])
    red.apply(llmd(a, second))
    await eventually(lambda: everywhere.live(first) is None and everywhere.live(second) == [])
    blue.apply(llmd(b, first), slice_of(b, "b-1", endpoint("10.0.1.1")))
    await eventually(lambda: everywhere.live(first) == blue_only.live(first) == ["http://10.0.1.1:8000"])
    red.delete("llmd", a)
    await eventually(lambda: everywhere.live(second) is None)


async def test_follows_each_of_several_namespaces(api_server, namespaces, follow):
    for client in namespaces:
        client.apply(llmd("a"))
    names = [client.namespace for client in namespaces]
    everywhere = await follow(from_kubeconfig(api_server.kubeconfig), *names)
    assert [everywhere.live(f"{namespace}/a") for namespace in names] == [[], []]


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
    namespaces, follow, eventually
):
    red, blue = namespaces
    rights = rights_of(red.namespace)
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "router"}}
    red.apply(llmd("a"), *rights, account)
    blue.apply(llmd("b"))
    file = kubeconfig_of(red.token("router"), red.kubeconfig, f"router-of-{red.namespace}")
    followed = await follow(from_kubeconfig(file), red.namespace, blue.namespace)
    assert followed.live(f"{red.namespace}/a") == []
    assert followed.live(f"{blue.namespace}/b") is None
    failures = {state.namespace: state.failures for state in followed.source.watches()}
    assert failures[blue.namespace] > 0
    blue.apply(*rights)
    await eventually(lambda: followed.live(f"{blue.namespace}/b") == [])


async def test_the_slices_of_other_services_with_the_label_have_no_replicas(api, follow, eventually):
    api.items["llmdeployments"] = [llmd("m", namespace="x", resourceVersion="7")]
    version = {"namespace": "x", "resourceVersion": "7"}
    api.items["endpointslices"] = [
        slice_of("m", "ours", endpoint("10.0.0.1"), **version),
        slice_of("m", "copied", endpoint("10.0.0.2"), service="m-copy", **version),
    ]

    followed = await follow(Access(api.url))

    assert followed.live("m") == ["http://10.0.0.1:8000"]
    becomes_ours = slice_of("m", "copied", endpoint("10.0.0.2"), namespace="x", resourceVersion="8")
    api.watches["endpointslices"].put_nowait(event("MODIFIED", becomes_ours))
    await eventually(lambda: followed.live("m") == ["http://10.0.0.1:8000", "http://10.0.0.2:8000"])
    another = slice_of(
        "m", "copied", endpoint("10.0.0.2"), service="m-copy", namespace="x", resourceVersion="9"
    )
    api.watches["endpointslices"].put_nowait(event("MODIFIED", another))
    await eventually(lambda: followed.live("m") == ["http://10.0.0.1:8000"])
