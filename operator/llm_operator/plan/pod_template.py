"""What people put over the operator's pod template: checked, then merged as kubectl would."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from llm_operator.api.schema import SpecError
from llm_operator.settings import Settings

PATH = "spec.podTemplate"
SERVICE_ACCOUNT = "the operator does not allow a choice of service account"
# What would give whoever may write an LLMDeployment more than a confined pod.
REFUSED = {
    r"spec\.(serviceAccount|serviceAccountName|automountServiceAccountToken)": SERVICE_ACCOUNT,
    r"spec\.(hostNetwork|hostPID|hostIPC|volumes\[\d+\]\.hostPath)": "engines share nothing with the host",
    r"spec\.(containers|initContainers)\[\d+\]\.securityContext\.(privileged|allowPrivilegeEscalation)": (
        "engines run without privileges"
    ),
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
    for key in overlay:
        if key not in ("metadata", "spec"):
            raise SpecError(f"{PATH}.{key}", "there is no such field; metadata and spec are")
    labels = template["metadata"]["labels"]
    ours = {f"{PATH}.metadata.labels.{label}": value for label, value in labels.items()}

    def check(path: str, value: object) -> None:
        for pattern, words in REFUSED.items():
            allowed = words == SERVICE_ACCOUNT and settings.allow_service_account
            if value is not False and not allowed and re.fullmatch(f"{PATH}.{pattern}", path):
                raise SpecError(path, words)
        if ours.get(path, value) != value:
            raise SpecError(path, "this label belongs to the operator")

    merged: dict[str, Any] = overlaid(template, overlay, PATH, check)
    return merged


def overlaid(base: Any, overlay: Any, path: str, check: Callable[[str, object], None]) -> Any:
    """Objects merge, null removes, lists of MERGE_KEYS merge item by item; all else is replaced."""
    check(path, overlay)
    if isinstance(overlay, Mapping):
        merged = dict(base) if isinstance(base, Mapping) else {}
        for key, value in overlay.items():
            merged[key] = overlaid(merged.get(key), value, f"{path}.{key}", check)
        return {key: value for key, value in merged.items() if value is not None}
    identity = MERGE_KEYS.get(path.rpartition(".")[2])
    if identity and isinstance(overlay, list):
        items = {item[identity]: item for item in base or ()}
        for index, item in enumerate(overlay):
            name = item.get(identity) if isinstance(item, Mapping) else None
            if not isinstance(name, str | int):
                raise SpecError(f"{path}[{index}].{identity}", "is required: it tells the items apart")
            items[name] = overlaid(items.get(name), item, f"{path}[{index}]", check)
        return list(items.values())
    if overlay is not None and isinstance(base, dict | list) and not isinstance(overlay, type(base)):
        wanted = "an object" if isinstance(base, dict) else "a list"
        raise SpecError(path, f"{wanted} is wanted; it is {overlay!r}")
    return overlay
