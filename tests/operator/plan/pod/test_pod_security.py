"""The Pod Security Standards, compared with the API server's own admission."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubernetes_client import RefusedError
from llm_operator.api.schema import SpecError
from llm_operator.plan.pod import pod_security
from llm_operator.settings import PodSecurity, Settings
from pod_specs import CONFINED, POD_SPECS, container, pod_context

LEVELS: tuple[PodSecurity, ...] = ("restricted", "baseline")
SYSCTLS = [
    {"name": name, "value": "1"} for name in (*pod_security.SYSCTLS, "kernel.shmmax", "net.core.somaxconn")
]


def is_allowed(pod_spec: dict[str, Any], level: PodSecurity, **metadata: Any) -> bool:
    try:
        pod_security.check({"metadata": metadata, "spec": pod_spec}, level, "spec.podTemplate")
    except SpecError:
        return False
    return True


Admits = Callable[..., bool | None]


@pytest.fixture(scope="module")
def admits(world: Any) -> Admits:
    """Return a function that asks the API server: None if the pod is invalid, whatever its namespace."""
    for level in LEVELS:
        labels = {
            f"pod-security.kubernetes.io/{key}": value
            for key, value in {"enforce": level, "enforce-version": "v1.34"}.items()
        }
        world.create_namespace(f"pods-{level}", labels=labels)

    def admits(pod_spec: dict[str, Any], level: PodSecurity, **metadata: Any) -> bool | None:
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "pod", "namespace": f"pods-{level}", **metadata},
            "spec": {"automountServiceAccountToken": False, **pod_spec},
        }
        try:
            world.create(pod, dryRun="All")
        except RefusedError as error:
            assert error.status == 422 or "violates PodSecurity" in error.message, error
            return None if error.status == 422 else False
        return True

    return admits


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", POD_SPECS)
def test_a_pod_is_allowed_exactly_if_the_api_server_admits_it(
    admits: Admits, level: PodSecurity, name: str
) -> None:
    admitted = admits(POD_SPECS[name], level)

    assert admitted is not None, "the API server rejects this pod at any level"
    assert is_allowed(POD_SPECS[name], level) == admitted


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("profile", ["unconfined", "runtime/default", "localhost/mine", ""])
def test_an_apparmor_annotation_is_allowed_exactly_if_the_api_server_admits_it(
    admits: Admits, level: PodSecurity, profile: str
) -> None:
    annotations = {"container.apparmor.security.beta.kubernetes.io/engine": profile}
    pod_spec = POD_SPECS["confined"]

    admitted = admits(pod_spec, level, annotations=annotations)

    assert admitted is None or is_allowed(pod_spec, level, annotations=annotations) == admitted


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("sysctl", SYSCTLS, ids=lambda sysctl: sysctl["name"])
def test_a_sysctl_is_allowed_exactly_if_the_api_server_admits_it(
    admits: Admits, level: PodSecurity, sysctl: dict[str, str]
) -> None:
    pod_spec = pod_context(sysctls=[sysctl])

    assert is_allowed(pod_spec, level) == admits(pod_spec, level)


CAPABILITIES = st.lists(st.sampled_from(["ALL", "CHOWN", "NET_BIND_SERVICE", "SYS_PTRACE"]), max_size=2)
SECCOMP = st.fixed_dictionaries({"type": st.sampled_from(["RuntimeDefault", "Unconfined"])})
CONTEXTS = st.fixed_dictionaries(
    {},
    optional={
        "allowPrivilegeEscalation": st.booleans(),
        "runAsNonRoot": st.booleans(),
        "runAsUser": st.sampled_from([0, 1000]),
        "seccompProfile": SECCOMP,
        "capabilities": st.fixed_dictionaries({}, optional={"drop": CAPABILITIES, "add": CAPABILITIES}),
    },
)
POD_CONTEXTS = st.fixed_dictionaries(
    {},
    optional={
        "runAsNonRoot": st.booleans(),
        "runAsUser": st.sampled_from([0, 1000]),
        "seccompProfile": SECCOMP,
    },
)


@given(
    of_pod=POD_CONTEXTS,
    contexts=st.lists(CONTEXTS | st.just(CONFINED), min_size=1, max_size=3),
    level=st.sampled_from(LEVELS),
)
def test_any_pod_is_allowed_exactly_if_the_api_server_admits_it(
    admits: Admits, of_pod: dict[str, Any], contexts: list[dict[str, Any]], level: PodSecurity
) -> None:
    listed = [container(name=f"c{index}", securityContext=each) for index, each in enumerate(contexts)]
    pod_spec = {"securityContext": of_pod, "containers": listed[:1], "initContainers": listed[1:]}

    admitted = admits(pod_spec, level)

    assert admitted is None or is_allowed(pod_spec, level) == admitted


@pytest.mark.parametrize(
    ("pod_spec", "message"),
    [
        ({"hostNetwork": True}, "hostNetwork: .* restricted; allowed: false or no value; it is true"),
        (
            {"volumes": [{"name": "local", "hostPath": {"path": "/"}}]},
            r"volumes\[local\]\.hostPath: .*; allowed: no value; it is",
        ),
        (
            {"containers": [{"name": "engine", "securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}]},
            r"containers\[engine\]\.securityContext\.capabilities\.add\[0\]: .*; allowed: AUDIT_WRITE, .* SYS_ADMIN",
        ),
        (
            {"containers": [{"name": "engine", "securityContext": {"runAsUser": 0}}]},
            r"containers\[engine\]\.securityContext\.runAsUser: .*; allowed: another user than 0",
        ),
        (
            {"securityContext": {"seccompProfile": {"type": "Unconfined"}}},
            r"securityContext\.seccompProfile\.type: .*; allowed: RuntimeDefault, Localhost or no value",
        ),
        (
            {"containers": [{"name": "engine", "ports": [{"containerPort": 8000, "hostPort": 80}]}]},
            r"containers\[engine\]\.ports\[http\]\.hostPort: .*; allowed: 0 or no value; it is 80",
        ),
        (
            {"containers": [{"name": "engine", "securityContext": None}]},
            r"containers\[engine\]\.securityContext\.allowPrivilegeEscalation: .*; allowed: false; it has no value",
        ),
        (
            {"containers": [{"name": "sidecar", "image": "s"}]},
            r"containers\[sidecar\]\.securityContext\.allowPrivilegeEscalation",
        ),
    ],
)
def test_a_pod_template_is_refused_with_the_field_and_what_is_allowed(
    planned: Any, manifest: Any, pod_spec: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError, match=rf"^spec\.podTemplate\.spec\.{message}"):
        planned(manifest(podTemplate={"spec": pod_spec}))


@pytest.mark.parametrize("level", ["baseline", "any"])
def test_the_operator_may_lower_the_standard(planned: Any, manifest: Any, level: PodSecurity) -> None:
    given_spec = manifest(podTemplate={"spec": {"containers": [{"name": "sidecar", "image": "s"}]}})

    goal = planned(given_spec, settings=Settings(engine_image="e", pod_security=level))

    assert len(goal.pod["containers"]) == 2


def test_only_the_level_any_allows_host_paths(planned: Any, manifest: Any) -> None:
    given_spec = manifest(podTemplate={"spec": {"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}})

    planned(given_spec, settings=Settings(engine_image="e", pod_security="any"))
    with pytest.raises(SpecError, match="Pod Security Standard baseline"):
        planned(given_spec, settings=Settings(engine_image="e", pod_security="baseline"))


def test_our_own_pod_is_admitted_where_restricted_is_enforced(
    admits: Admits, planned: Any, manifest: Any
) -> None:
    assert admits(planned(manifest(resources={"gpu": 1})).pod, "restricted")


def test_the_api_server_refuses_ephemeral_containers_in_a_template(
    world: Any, planned: Any, manifest: Any
) -> None:
    overlay = {"spec": {"ephemeralContainers": [{"name": "debug", "image": "debug:1"}]}}
    deployment = planned(manifest(podTemplate=overlay)).child("Deployment")
    del deployment["metadata"]["ownerReferences"]

    with pytest.raises(RefusedError, match="ephemeralContainers") as refused:
        world.create(deployment, dryRun="All", fieldValidation="Ignore")
    assert refused.value.status == 422
