"""What people put over the operator's pod template: checked, then merged as kubectl would."""

from collections.abc import Mapping
from typing import Any

from llm_operator.schema import SpecError, as_list, as_object
from llm_operator.settings import Settings

PATH = "spec.podTemplate"
SERVICE_ACCOUNT_FIELDS = ("serviceAccountName", "serviceAccount", "automountServiceAccountToken")
HOST_FIELDS = ("hostNetwork", "hostPID", "hostIPC")
PRIVILEGES = ("privileged", "allowPrivilegeEscalation")
# Lists that are merged item by item, and what tells their items apart.
MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "volumeMounts": "mountPath",
    "ports": "containerPort",
}


def merge(template: dict[str, Any], overlay: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    check(template, overlay, settings)
    return overlaid(template, overlay, PATH)


def check(template: Mapping[str, Any], overlay: Mapping[str, Any], settings: Settings) -> None:
    """Whoever may write an LLMDeployment gains no more than a confined pod by it."""
    for key in overlay:
        if key not in ("metadata", "spec"):
            raise SpecError(f"{PATH}.{key}", "there is no such field (allowed: metadata, spec)")
    metadata = section(overlay, "metadata", PATH)
    labels = section(metadata, "labels", f"{PATH}.metadata")
    for label, value in template["metadata"]["labels"].items():
        if label in labels and labels[label] != value:
            raise SpecError(f"{PATH}.metadata.labels", f"{label} belongs to the operator")
    pod = section(overlay, "spec", PATH)
    path = f"{PATH}.spec"
    for key in SERVICE_ACCOUNT_FIELDS:
        if key in pod and not settings.allow_service_account:
            raise SpecError(f"{path}.{key}", "the operator does not allow a choice of service account")
    for key in HOST_FIELDS:
        if pod.get(key):
            raise SpecError(f"{path}.{key}", "engines do not share the host's namespaces")
    for index, volume in enumerate(listed(pod, "volumes", path)):
        if volume.get("hostPath") is not None:
            raise SpecError(f"{path}.volumes[{index}].hostPath", "engines do not mount the host's folders")
    for kind in ("initContainers", "containers"):
        for index, container in enumerate(listed(pod, kind, path)):
            where = f"{path}.{kind}[{index}]"
            context = section(container, "securityContext", where)
            for key in PRIVILEGES:
                if context.get(key):
                    raise SpecError(f"{where}.securityContext.{key}", "engines run without privileges")


def section(parent: Mapping[str, Any], key: str, path: str) -> Mapping[str, Any]:
    return as_object(parent.get(key) or {}, f"{path}.{key}")


def listed(parent: Mapping[str, Any], key: str, path: str) -> list[Mapping[str, Any]]:
    items = as_list(parent.get(key) or [], f"{path}.{key}")
    return [as_object(item, f"{path}.{key}[{index}]") for index, item in enumerate(items)]


def overlaid(base: Mapping[str, Any], overlay: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Objects merge, null removes, lists of MERGE_KEYS merge item by item; all else is replaced."""
    merged = dict(base)
    for key, value in overlay.items():
        where = f"{path}.{key}"
        if value is None:
            merged.pop(key, None)
        elif isinstance(merged.get(key), Mapping):
            merged[key] = overlaid(merged[key], as_object(value, where), where)
        elif key in MERGE_KEYS and isinstance(merged.get(key), list):
            merged[key] = overlaid_list(merged[key], listed(overlay, key, path), MERGE_KEYS[key], where)
        else:
            merged[key] = value
    return merged


def overlaid_list(
    base: list[dict[str, Any]], overlay: list[Mapping[str, Any]], identity: str, path: str
) -> list[dict[str, Any]]:
    merged = {item[identity]: item for item in base}
    for index, item in enumerate(overlay):
        key = item.get(identity)
        if not isinstance(key, str | int):
            raise SpecError(f"{path}[{index}].{identity}", "is required: it tells the items apart")
        merged[key] = overlaid(merged.get(key, {}), item, f"{path}[{index}]")
    return list(merged.values())
