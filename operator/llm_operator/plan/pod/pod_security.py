"""The Pod Security Standards `baseline` and `restricted` of Kubernetes 1.34, for a merged pod template.

Source: https://kubernetes.io/docs/concepts/security/pod-security-standards. Pods for Windows and pods with a user
namespace of their own get none of the exemptions that newer API servers grant them.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from llm_operator.api.schema import SpecError
from llm_operator.settings import PodSecurity

# The keys that lead from a template to a value; ITEMS is each item of a list, and other keys are patterns.
Path = tuple[str, ...]
ITEMS = "[]"

# The API server refuses ephemeral containers in a pod template.
CONTAINER_LISTS = ("containers", "initContainers")
CAPABILITIES = (
    *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE"),
    *("SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
)
IPV4_SYSCTLS = (
    *("ip_local_port_range", "ip_local_reserved_ports", "ip_unprivileged_port_start", "ping_group_range"),
    *("tcp_fin_timeout", "tcp_keepalive_intvl", "tcp_keepalive_probes", "tcp_keepalive_time"),
    *("tcp_rmem", "tcp_syncookies", "tcp_wmem"),
)
SYSCTLS = ("kernel.shm_rmid_forced", *(f"net.ipv4.{name}" for name in IPV4_SYSCTLS))
VOLUME_TYPES = (
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "image"),
    *("persistentVolumeClaim", "projected", "secret"),
)
SELINUX_TYPES = ("container_t", "container_init_t", "container_kvm_t", "container_engine_t")
PROFILES = ("RuntimeDefault", "Localhost")
HANDLERS = ("livenessProbe", "readinessProbe", "startupProbe", "lifecycle.postStart", "lifecycle.preStop")
# Fields of the pod's security context that hold for containers without a value of their own.
INHERITED = ("runAsNonRoot", "seccompProfile")


@dataclass(frozen=True, slots=True)
class Control:
    """A restriction of the values at some paths of a template."""

    paths: tuple[Path, ...]
    # Returns True for a value that is allowed; None stands for an absent one.
    permits: Callable[[Any], bool]
    # The allowed values, for people.
    allowed: str


def unset_or(paths: tuple[Path, ...], *values: object) -> Control:
    """Return a control of fields that are absent or have one of `values`; strings may be patterns."""
    named = [text_of(value) for value in values if value != ""]
    allowed = " or ".join(filter(None, (", ".join(named), "no value")))
    return Control(
        paths, lambda given: given is None or any(is_match(given, value) for value in values), allowed
    )


def text_of(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def is_match(given: object, allowed: object) -> bool:
    if isinstance(given, str) and isinstance(allowed, str):
        return fnmatchcase(given, allowed)
    return type(given) is type(allowed) and given == allowed


def of_pod(*fields: str) -> tuple[Path, ...]:
    return tuple(("spec", *field.split(".")) for field in fields)


def of_containers(*fields: str) -> tuple[Path, ...]:
    return tuple(
        ("spec", containers, ITEMS, *field.split(".")) for containers in CONTAINER_LISTS for field in fields
    )


def of_contexts(*fields: str) -> tuple[Path, ...]:
    """Return the paths of fields of the security contexts of the pod and of its containers."""
    below = [f"securityContext.{field}" for field in fields]
    return (*of_pod(*below), *of_containers(*below))


BASELINE = (
    unset_or(of_contexts("windowsOptions.hostProcess"), False),
    unset_or(of_pod("hostNetwork", "hostPID", "hostIPC"), False),
    unset_or(of_containers("securityContext.privileged"), False),
    unset_or(of_containers(f"securityContext.capabilities.add.{ITEMS}"), *CAPABILITIES),
    unset_or(of_pod(f"volumes.{ITEMS}.hostPath")),
    unset_or(of_containers(f"ports.{ITEMS}.hostPort"), 0),
    unset_or(
        of_containers(*(f"{each}.{kind}.host" for each in HANDLERS for kind in ("httpGet", "tcpSocket"))), ""
    ),
    unset_or(
        (("metadata", "annotations", "container.apparmor.security.beta.kubernetes.io/*"),),
        *("runtime/default", "localhost/*", ""),
    ),
    unset_or(of_contexts("appArmorProfile.type"), *PROFILES),
    unset_or(of_contexts("seLinuxOptions.type"), *SELINUX_TYPES, ""),
    unset_or(of_contexts("seLinuxOptions.user", "seLinuxOptions.role"), ""),
    unset_or(of_containers("securityContext.procMount"), "Default"),
    unset_or(of_contexts("seccompProfile.type"), *PROFILES),
    unset_or(of_pod(f"securityContext.sysctls.{ITEMS}.name"), *SYSCTLS),
)
RESTRICTED = (
    *BASELINE,
    Control(
        of_pod(f"volumes.{ITEMS}"),
        lambda volume: isinstance(volume, Mapping) and volume.keys() <= {"name", *VOLUME_TYPES},
        f"a volume of one of the types {', '.join(VOLUME_TYPES)}",
    ),
    Control(of_containers("securityContext.allowPrivilegeEscalation"), lambda value: value is False, "false"),
    unset_or(of_pod("securityContext.runAsNonRoot"), True),
    Control(of_containers("securityContext.runAsNonRoot"), lambda value: value is True, "true"),
    Control(of_contexts("runAsUser"), lambda user: user != 0, "another user than 0, or no value"),
    Control(
        of_containers("securityContext.seccompProfile.type"),
        lambda value: value in PROFILES,
        ", ".join(PROFILES),
    ),
    Control(
        of_containers("securityContext.capabilities.drop"),
        lambda dropped: isinstance(dropped, list) and "ALL" in dropped,
        "a list with ALL in it",
    ),
    unset_or(of_containers(f"securityContext.capabilities.add.{ITEMS}"), "NET_BIND_SERVICE"),
)
LEVELS: dict[PodSecurity, tuple[Control, ...]] = {"restricted": RESTRICTED, "baseline": BASELINE, "any": ()}


def check(template: Mapping[str, Any], level: PodSecurity, path: str) -> None:
    """Raise SpecError if the pod template, which lies at `path`, breaks the standard."""
    subject = with_inherited(template)
    for control in LEVELS[level]:
        for keys in control.paths:
            for name, value in values(subject, keys, path):
                if not control.permits(value):
                    found = "it has no value" if value is None else f"it is {text_of(value)}"
                    standard = f"pods must satisfy the Pod Security Standard {level}"
                    raise SpecError(name, f"{standard}; allowed: {control.allowed}; {found}")


def with_inherited(template: Mapping[str, Any]) -> dict[str, Any]:
    """Return the template with the values that containers inherit from the pod in the containers."""
    pod = template.get("spec", {})
    context = pod.get("securityContext") or {}
    inherited = {field: context[field] for field in INHERITED if field in context}
    lists = {
        name: [
            {**container, "securityContext": inherited | (container.get("securityContext") or {})}
            for container in pod[name]
        ]
        for name in CONTAINER_LISTS
        if name in pod
    }
    return {**template, "spec": {**pod, **lists}}


def values(value: Any, keys: Path, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the path and the value of every place that `keys` lead to; None for an absent value."""
    if not keys:
        yield path, value
        return
    first, *rest = keys
    if first == ITEMS:
        for index, item in enumerate(value if isinstance(value, list) else ()):
            named = item.get("name", index) if isinstance(item, Mapping) else index
            yield from values(item, tuple(rest), f"{path}[{named}]")
        return
    fields = value if isinstance(value, Mapping) else {}
    matching = [key for key in fields if fnmatchcase(key, first)] if "*" in first else [first]
    for key in matching:
        yield from values(fields.get(key), tuple(rest), f"{path}.{key}")
