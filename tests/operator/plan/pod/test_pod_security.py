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

LEVELS: tuple[PodSecurity, ...] = ("restricted", "baseline")
CONFINED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def container(**changes: Any) -> dict[str, Any]:
    return {"name": "engine", "image": "engine:1", "securityContext": CONFINED, **changes}


def context(**changes: Any) -> dict[str, Any]:
    """Return the spec of a pod whose container has a changed security context; None leaves a field out."""
    changed = {key: value for key, value in (CONFINED | changes).items() if value is not None}
    return {"containers": [container(securityContext=changed)]}


def pod_context(container_changes: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    return context(**(container_changes or {})) | {"securityContext": changes}


def volume(**content: Any) -> dict[str, Any]:
    return {"containers": [container()], "volumes": [{"name": "v", **content}]}


def probe(kind: str, handler: str, **content: Any) -> dict[str, Any]:
    return {"containers": [container(**{kind: {handler: {"port": 8000, **content}}})]}


def lifecycle(hook: str, **content: Any) -> dict[str, Any]:
    return {"containers": [container(lifecycle={hook: {"httpGet": {"port": 8000, **content}}})]}


NOTHING_FROM_CONTAINER = {"runAsNonRoot": None, "seccompProfile": None}
POD_SPECS: dict[str, dict[str, Any]] = {
    "confined": {"containers": [container()]},
    "no security context": {"containers": [{"name": "engine", "image": "engine:1"}]},
    "host network": {"containers": [container()], "hostNetwork": True},
    "host PID": {"containers": [container()], "hostPID": True},
    "host IPC": {"containers": [container()], "hostIPC": True},
    "no host network": {"containers": [container()], "hostNetwork": False},
    "privileged": context(privileged=True, allowPrivilegeEscalation=None),
    "not privileged": context(privileged=False),
    "privilege escalation": context(allowPrivilegeEscalation=True),
    "privilege escalation by default": context(allowPrivilegeEscalation=None),
    "SYS_ADMIN": context(capabilities={"drop": ["ALL"], "add": ["SYS_ADMIN"]}, allowPrivilegeEscalation=None),
    "CHOWN": context(capabilities={"drop": ["ALL"], "add": ["CHOWN"]}),
    "NET_BIND_SERVICE": context(capabilities={"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}),
    "one capability dropped": context(capabilities={"drop": ["CHOWN"]}),
    "no capability dropped": context(capabilities=None),
    "host path": volume(hostPath={"path": "/models"}),
    "claim": volume(persistentVolumeClaim={"claimName": "models"}),
    "ephemeral claim": volume(
        ephemeral={
            "volumeClaimTemplate": {
                "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
            }
        }
    ),
    "NFS": volume(nfs={"server": "nfs", "path": "/models"}),
    "iSCSI": volume(iscsi={"targetPortal": "10.0.0.1", "iqn": "iqn.2001-04.com.example:x", "lun": 0}),
    "CSI": volume(csi={"driver": "models.example.com"}),
    "image volume": volume(image={"reference": "models:1"}),
    "ConfigMap, Secret, projected": {
        "containers": [container()],
        "volumes": [
            {"name": "a", "configMap": {"name": "c"}},
            {"name": "b", "secret": {"secretName": "s"}},
            {"name": "c", "projected": {"sources": [{"configMap": {"name": "c"}}]}},
            {"name": "d", "downwardAPI": {"items": []}},
            {"name": "e", "emptyDir": {}},
        ],
    },
    "host port": {"containers": [container(ports=[{"containerPort": 8000, "hostPort": 8000}])]},
    "host port 0": {"containers": [container(ports=[{"containerPort": 8000, "hostPort": 0}])]},
    "probe of another host": probe("livenessProbe", "httpGet", host="10.0.0.1"),
    "probe of localhost": probe("startupProbe", "tcpSocket", host="127.0.0.1"),
    "probe of the pod": probe("readinessProbe", "httpGet"),
    "hook to another host": lifecycle("preStop", host="10.0.0.1"),
    "hook to the pod": lifecycle("postStart"),
    "AppArmor off": context(appArmorProfile={"type": "Unconfined"}),
    "AppArmor": context(appArmorProfile={"type": "RuntimeDefault"}),
    "AppArmor off for the pod": pod_context(appArmorProfile={"type": "Unconfined"}),
    "SELinux type": context(seLinuxOptions={"type": "spc_t"}),
    "SELinux container type": context(seLinuxOptions={"type": "container_t", "level": "s0:c1"}),
    "SELinux engine type": pod_context(seLinuxOptions={"type": "container_engine_t"}),
    "SELinux user": pod_context(seLinuxOptions={"user": "system_u", "type": "spc_t"}),
    "SELinux role": pod_context(seLinuxOptions={"role": "system_r"}),
    "procMount": context(procMount="Default"),
    "seccomp off": context(seccompProfile={"type": "Unconfined"}),
    "seccomp off for the pod": pod_context(seccompProfile={"type": "Unconfined"}),
    "seccomp by default": context(seccompProfile=None),
    "seccomp from the pod": pod_context({"seccompProfile": None}, seccompProfile={"type": "RuntimeDefault"}),
    "local seccomp": context(seccompProfile={"type": "Localhost", "localhostProfile": "p.json"}),
    "safe sysctl": pod_context(sysctls=[{"name": "net.ipv4.tcp_rmem", "value": "1 2 3"}]),
    "unsafe sysctl": pod_context(sysctls=[{"name": "kernel.msgmax", "value": "1"}]),
    "root allowed": context(runAsNonRoot=False),
    "root allowed by the pod": pod_context(runAsNonRoot=False),
    "root by default": context(runAsNonRoot=None),
    "not root by the pod": pod_context({"runAsNonRoot": None}, runAsNonRoot=True),
    "user 0": context(runAsUser=0),
    "user 0 of the pod": pod_context(runAsUser=0),
    "user 1000": pod_context(runAsUser=1000),
    "Windows host process": pod_context(windowsOptions={"hostProcess": True}) | {"hostNetwork": True},
    "confined by the pod": pod_context(
        NOTHING_FROM_CONTAINER, runAsNonRoot=True, seccompProfile={"type": "RuntimeDefault"}
    ),
    "init container with privileges": {
        "containers": [container()],
        "initContainers": [container(name="first", securityContext=CONFINED | {"runAsUser": 0})],
    },
    "sidecar without a security context": {
        "containers": [container(), {"name": "sidecar", "image": "sidecar:1"}]
    },
}
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
