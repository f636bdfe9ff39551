"""Specs of pods that satisfy the Pod Security Standards or break one of their controls, by what is special."""

from typing import Any

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
