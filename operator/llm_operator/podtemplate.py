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
    merged: dict[str, Any] = overlaid(template, overlay, PATH)
    return merged


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


def overlaid(base: Any, overlay: Any, path: str) -> Any:
    """Objects merge, null removes, lists of MERGE_KEYS merge item by item; all else is replaced."""
    if overlay is None:
        return None
    if isinstance(base, Mapping):
        merged = dict(base)
        for key, value in as_object(overlay, path).items():
            merged[key] = overlaid(merged.get(key), value, f"{path}.{key}")
        return {key: value for key, value in merged.items() if value is not None}
    identity = MERGE_KEYS.get(path.rpartition(".")[2])
    if identity is None or not isinstance(base, list):
        return overlay
    items = {item[identity]: item for item in base}
    for index, item in enumerate(as_list(overlay, path)):
        where = f"{path}[{index}]"
        name = as_object(item, where).get(identity)
        if not isinstance(name, str | int):
            raise SpecError(f"{where}.{identity}", "is required: it tells the items apart")
        items[name] = overlaid(items.get(name, {}), item, where)
    return list(items.values())
