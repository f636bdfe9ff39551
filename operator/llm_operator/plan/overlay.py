"""The user's podTemplate: checked, then merged over the operator's template as `kubectl patch` merges."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from llm_operator.api.schema import SpecError
from llm_operator.settings import Settings

PATH = "spec.podTemplate"
SERVICE_ACCOUNT = r"spec\.(serviceAccount|serviceAccountName|automountServiceAccountToken)"
# Fields that would give the author of an LLMDeployment more than a confined pod, with the reason.
REFUSED = {
    r"spec\.(hostNetwork|hostPID|hostIPC|volumes\[\d+\]\.hostPath)": "engines share nothing with the host",
    r"spec\.(containers|initContainers)\[\d+\]\.securityContext\.(privileged|allowPrivilegeEscalation)": (
        "engines run without privileges"
    ),
}
# Lists that are merged item by item, with the field that identifies an item.
MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "volumeMounts": "mountPath",
    "ports": "containerPort",
}

# Raises SpecError if a value may not be set at a path.
Check = Callable[[str, object], None]


def merge(template: dict[str, Any], overlay: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """Return `template` with `overlay` merged into it. Raises SpecError for what an overlay may not set."""
    for key in overlay:
        if key not in ("metadata", "spec"):
            raise SpecError(f"{PATH}.{key}", "there is no such field; allowed: metadata, spec")
    refused = dict(REFUSED)
    if not settings.allow_service_account:
        refused[SERVICE_ACCOUNT] = "the operator does not allow a choice of service account"
    own_labels = {
        f"{PATH}.metadata.labels.{label}": value for label, value in template["metadata"]["labels"].items()
    }

    def check(path: str, value: object) -> None:
        for pattern, reason in refused.items():
            if value is not False and re.fullmatch(f"{PATH}.{pattern}", path):
                raise SpecError(path, reason)
        if own_labels.get(path, value) != value:
            raise SpecError(path, "this label belongs to the operator")

    merged: dict[str, Any] = merged_value(template, overlay, PATH, check)
    return merged


def merged_value(base: Any, overlay: Any, path: str, check: Check) -> Any:
    """Merge objects by field and lists of MERGE_KEYS by item; null removes; any other value replaces."""
    check(path, overlay)
    if isinstance(overlay, Mapping):
        return merged_object(base, overlay, path, check)
    identity = MERGE_KEYS.get(path.rpartition(".")[2])
    if identity and isinstance(overlay, list):
        return merged_list(base, overlay, identity, path, check)
    if overlay is not None and isinstance(base, dict | list) and not isinstance(overlay, type(base)):
        expected = "an object" if isinstance(base, dict) else "a list"
        raise SpecError(path, f"expected {expected}; it is {overlay!r}")
    return overlay


def merged_object(base: Any, overlay: Mapping[str, Any], path: str, check: Check) -> dict[str, Any]:
    merged = dict(base) if isinstance(base, Mapping) else {}
    for key, value in overlay.items():
        merged[key] = merged_value(merged.get(key), value, f"{path}.{key}", check)
    return {key: value for key, value in merged.items() if value is not None}


def merged_list(base: Any, overlay: list[Any], identity: str, path: str, check: Check) -> list[Any]:
    items = {item[identity]: item for item in base or ()}
    for index, item in enumerate(overlay):
        name = item.get(identity) if isinstance(item, Mapping) else None
        if not isinstance(name, str | int):
            raise SpecError(f"{path}[{index}].{identity}", "is required: it identifies the item")
        items[name] = merged_value(items.get(name), item, f"{path}[{index}]", check)
    return list(items.values())
