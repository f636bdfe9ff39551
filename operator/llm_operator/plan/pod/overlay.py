"""The user's podTemplate: checked, then merged over the operator's template as `kubectl patch` merges."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from llm_operator.api.schema import SpecError
from llm_operator.plan.pod.variables import overridden

PATH = "spec.podTemplate"
SERVICE_ACCOUNT = rf"{PATH}\.spec\.(serviceAccount|serviceAccountName|automountServiceAccountToken)"
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
# Lists that are added to the operator's.
EXTENDED = ("tolerations",)

# Raises SpecError if a value may not be set at a path.
Check = Callable[[str, object], None]


def merge(
    template: dict[str, Any],
    overlay: Mapping[str, Any],
    own_labels: Mapping[str, str],
    may_choose_account: bool,
) -> dict[str, Any]:
    """Return `template` with `overlay` merged into it. Raises SpecError for what an overlay may not set."""
    fixed = {f"{PATH}.metadata.labels.{label}": value for label, value in own_labels.items()}

    def check(path: str, value: object) -> None:
        is_allowed = may_choose_account or value is False
        if not is_allowed and re.fullmatch(SERVICE_ACCOUNT, path):
            raise SpecError(path, "the operator does not allow a choice of service account")
        if fixed.get(path, value) != value:
            raise SpecError(path, "this label belongs to the operator")

    given = {key: value for key, value in overlay.items() if value is not None}
    merged: dict[str, Any] = merged_value(template, given, PATH, check)
    return merged


def merged_value(base: Any, overlay: Any, path: str, check: Check) -> Any:
    """Merge objects by field and lists of MERGE_KEYS by item, and extend lists of EXTENDED.

    Null removes; any other value replaces.
    """
    check(path, overlay)
    if isinstance(overlay, Mapping):
        return merged_object(base, overlay, path, check)
    field = path.rpartition(".")[2]
    if field in EXTENDED and isinstance(overlay, list):
        return [*(base or ()), *(item for item in overlay if item not in (base or ()))]
    identity = MERGE_KEYS.get(field)
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
    given: dict[Any, Any] = {}
    for index, item in enumerate(overlay):
        name = item.get(identity) if isinstance(item, Mapping) else None
        if not isinstance(name, str | int):
            raise SpecError(f"{path}[{index}].{identity}", "is required: it identifies the item")
        given[name] = merged_value(given.get(name, items.get(name)), item, f"{path}[{index}]", check)
    return overridden(items, given) if path.endswith(".env") else list((items | given).values())
