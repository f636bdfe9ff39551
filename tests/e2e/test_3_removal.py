"""Deletion and uninstallation. They run last, since they remove Fairlead."""

from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from cluster_manifests import llmdeployment
from llm_operator.flags import LEASE_NAME
from llm_operator.kinds import OWNED
from waiting import until

pytestmark = pytest.mark.e2e

SYSTEM, NAMESPACE, OTHER = "fairlead-system", "team-a", "team-b"
OF_LLMDEPLOYMENTS = [f"{kind.plural}.{kind.group}".rstrip(".") for kind in OWNED]
CHILDREN = ",".join((*OF_LLMDEPLOYMENTS, "endpointslices", "secrets", "leases"))
EVERYTHING = f"{CHILDREN},roles,rolebindings"
OF_ANY_NAMESPACE = {"serviceaccount/default", "configmap/kube-root-ca.crt"}
# The operator's, which makes it.
LEASE = f"lease.coordination.k8s.io/{LEASE_NAME}"
OPERATOR = ("deploy/fairlead-operator", "-n", SYSTEM)


@pytest.fixture
def scaled(cluster: Any) -> Iterator[Callable[[int], None]]:
    """Set the operator's number of replicas and wait for it."""

    def to(replicas: int) -> None:
        cluster.kubectl("scale", *OPERATOR, f"--replicas={replicas}")
        cluster.kubectl("rollout", "status", *OPERATOR, "--timeout=120s")
        if not replicas:
            cluster.kubectl(
                "wait", "--for=delete", "pod", "-n", SYSTEM,
                "-l", "app.kubernetes.io/component=operator", "--timeout=60s",
            )  # fmt: skip

    yield to
    to(1)


@pytest.fixture
def others(cluster: Any, release: None) -> Iterator[set[str]]:
    """Return the objects of the other namespace that belong to no deployment; delete all deployments at the end."""
    labelled = "fairlead.dev/llmdeployment"
    until(lambda: not cluster.names(CHILDREN, OTHER, labelled), "what was deleted before is gone")
    yield set(cluster.names(CHILDREN, OTHER))
    cluster.kubectl("delete", "llmd", "--all", "-n", OTHER)


def test_delete_removes_everything_of_a_deployment_with_and_without_an_operator(
    cluster: Any, others: set[str], scaled: Callable[[int], None]
) -> None:
    def objects() -> set[str]:
        return set(cluster.names(CHILDREN, OTHER)) - others

    def of(name: str) -> set[str]:
        return {each for each in objects() if each.partition("/")[2].startswith(name)}

    names = ("brief", "passing")
    cluster.apply(OTHER, *(llmdeployment(name, resources={"cpu": "100m"}) for name in names))
    for name in names:
        cluster.wait_ready(name, OTHER)
        assert {f"deployment.apps/{name}-engine", f"service/{name}-engine"} <= of(name)
    cluster.kubectl("delete", "llmd", "brief", "-n", OTHER, "--timeout=30s")
    until(lambda: objects() == of("passing"), "nothing of it is left")
    scaled(0)
    cluster.kubectl("delete", "llmd", "passing", "-n", OTHER, "--timeout=30s")
    until(lambda: not objects(), "nothing of the other is left without an operator")


def answers(client: openai.OpenAI) -> bool:
    return bool(client.completions.create(model="smollm2", prompt="The sea is", max_tokens=4).choices[0].text)


def edit_is_observed(cluster: Any, name: str) -> None:
    """Make an edit that reaches no replica, and wait until the operator has observed it."""
    cluster.merge(name, NAMESPACE, routing={})
    generation = cluster.llmd(name, NAMESPACE)["metadata"]["generation"]
    until(
        lambda: cluster.llmd(name, NAMESPACE)["status"]["observedGeneration"] == generation,
        "the operator observes an edit",
    )


def uninstall(cluster: Any) -> None:
    """Uninstall a release that works, or what a failed test has left of it, and check that only the Lease is left."""
    if cluster.names("deployments", SYSTEM):
        cluster.kubectl("wait", "--for=condition=Available", *OPERATOR, "--timeout=60s")
    cluster.run("helm", "uninstall", "fairlead", "--namespace", SYSTEM, "--wait", "--ignore-not-found")
    mine = "app.kubernetes.io/name=fairlead"

    def left() -> set[str]:
        found = {*cluster.names(EVERYTHING, SYSTEM), *cluster.names(EVERYTHING, NAMESPACE, mine)}
        return (
            (found | {*cluster.names("clusterroles,clusterrolebindings", SYSTEM, mine)})
            - OF_ANY_NAMESPACE
            - {LEASE}
        )

    until(lambda: not left(), "nothing of the release is left")
    assert cluster.names("crd", SYSTEM, mine) == [
        "customresourcedefinition.apiextensions.k8s.io/llmdeployments.fairlead.dev"
    ]


def test_uninstall_keeps_the_crd_and_the_llmdeployments(cluster: Any, smollm2: str) -> None:
    running = cluster.engines(smollm2, NAMESPACE)
    uninstall(cluster)
    assert cluster.names("llmd", NAMESPACE) == ["llmdeployment.fairlead.dev/smollm2"]
    assert cluster.engines(smollm2, NAMESPACE) == running


def test_installs_again_for_one_namespace_from_the_image_without_an_engine(
    cluster: Any, smollm2: str, helm: Any
) -> None:
    running = cluster.engines(smollm2, NAMESPACE)
    helm(
        "install", f"watchNamespaces={{{NAMESPACE}}}", "rbac.aggregateToDefaultRoles=false",
        f"engine.image={cluster.image}", image=cluster.control_plane_image,
    )  # fmt: skip
    assert cluster.names("clusterroles", SYSTEM, "app.kubernetes.io/name=fairlead") == []
    cluster.kubectl("annotate", "llmd", smollm2, "-n", NAMESPACE, "looked=at")
    edit_is_observed(cluster, smollm2)
    assert cluster.engines(smollm2, NAMESPACE) == running


def test_router_of_one_namespace_answers(smollm2: str, client: openai.OpenAI) -> None:
    assert answers(client)


def test_uninstalls_the_namespaced_release(cluster: Any, smollm2: str) -> None:
    uninstall(cluster)


@pytest.fixture
def earlier_release(cluster: Any, helm: Any, smollm2: str) -> None:
    """Install a release of other operators and routers in place of what a failed test has left."""
    uninstall(cluster)
    helm("install", "operator.podAnnotations.release=earlier", "router.podAnnotations.release=earlier")


def test_helm_upgrade_restarts_no_engine_and_fails_no_request(
    cluster: Any, helm: Any, smollm2: str, earlier_release: None, served: Any
) -> None:
    running = cluster.engines(smollm2, NAMESPACE)
    with served("helm upgrade"):
        # Nobody can pull this image: an engine that takes it never starts.
        helm("upgrade", "engine.image=registry.invalid/fairlead:next")
        for component in ("operator", "router"):
            rolled = (f"deploy/fairlead-{component}", "-n", SYSTEM)
            cluster.kubectl("rollout", "status", *rolled, "--timeout=120s")
            annotations = cluster.get(*rolled)["spec"]["template"]["metadata"].get("annotations", {})
            assert "release" not in annotations
        edit_is_observed(cluster, smollm2)
    assert cluster.engines(smollm2, NAMESPACE) == running
    uninstall(cluster)


def test_plain_manifests_take_over_and_serve(cluster: Any, smollm2: str) -> None:
    running = cluster.engines(smollm2, NAMESPACE)
    cluster.kubectl("apply", "--dry-run=server", "-k", "manifests")
    cluster.kubectl("apply", "-k", "tests/e2e/plain")
    for component in ("operator", "router"):
        cluster.kubectl("rollout", "status", f"deploy/fairlead-{component}", "-n", SYSTEM, "--timeout=120s")
    cluster.wait_ready(smollm2, NAMESPACE)
    assert cluster.engines(smollm2, NAMESPACE) == running


def test_router_of_the_plain_manifests_answers(smollm2: str, client: openai.OpenAI) -> None:
    assert answers(client)
