"""What people put over the operator's pod template: checked, then merged as kubectl would."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from llm_operator.schema import SpecError, as_list, as_object
from llm_operator.settings import Settings

PATH = "spec.podTemplate"
# What would give whoever may write an LLMDeployment more than a confined pod.
SERVICE_ACCOUNT = "the operator does not allow a choice of service account"
HOST = "engines share nothing with the host"
PRIVILEGES = "engines run without privileges"
REFUSED = {
    "spec.serviceAccountName": SERVICE_ACCOUNT,
    "spec.serviceAccount": SERVICE_ACCOUNT,
    "spec.automountServiceAccountToken": SERVICE_ACCOUNT,
    "spec.hostNetwork": HOST,
    "spec.hostPID": HOST,
    "spec.hostIPC": HOST,
    "spec.volumes[].hostPath": HOST,
    "spec.containers[].securityContext.privileged": PRIVILEGES,
    "spec.containers[].securityContext.allowPrivilegeEscalation": PRIVILEGES,
    "spec.initContainers[].securityContext.privileged": PRIVILEGES,
    "spec.initContainers[].securityContext.allowPrivilegeEscalation": PRIVILEGES,
}
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
    for key in overlay:
        if key not in ("metadata", "spec"):
            raise SpecError(f"{PATH}.{key}", "there is no such field; metadata and spec are")
    ours = {f"metadata.labels.{label}": value for label, value in template["metadata"]["labels"].items()}
    for path, value in leaves(overlay, ""):
        refusal = REFUSED.get(re.sub(r"\[\d+\]", "[]", path))
        if refusal == SERVICE_ACCOUNT and settings.allow_service_account:
            continue
        if refusal and value is not False:
            raise SpecError(f"{PATH}.{path}", refusal)
        if ours.get(path, value) != value:
            raise SpecError(f"{PATH}.{path}", "this label belongs to the operator")


def leaves(value: object, path: str) -> Iterator[tuple[str, object]]:
    """Every path in a manifest, with what lies there."""
    yield path, value
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from leaves(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from leaves(item, f"{path}[{index}]")


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
