"""The operator's rights, for the chart: the rules of its role, and the children that its admission policy matches.

    python -m llm_operator.rights

prints them as the chart's file.
"""

from collections import defaultdict
from typing import Any

import yaml

from llm_operator.kinds import CHILDREN, KINDS


def rules() -> list[dict[str, Any]]:
    """Return the rules of the role; kinds of one group with the same verbs share one."""
    plurals: defaultdict[tuple[str, tuple[str, ...]], list[str]] = defaultdict(list)
    for kind in KINDS:
        group, plural = kind.resource.group, kind.resource.plural
        plurals[group, kind.verbs].append(plural)
        for subresource, verbs in kind.subresources.items():
            plurals[group, verbs].append(f"{plural}/{subresource}")
    return [
        {"apiGroups": [group], "resources": resources, "verbs": list(verbs)}
        for (group, verbs), resources in plurals.items()
    ]


def children() -> list[dict[str, Any]]:
    """Return the rules by which an admission policy matches children."""
    plurals: defaultdict[str, list[str]] = defaultdict(list)
    for resource in CHILDREN.values():
        plurals[resource.group].append(resource.plural)
    operations = ["CREATE", "UPDATE", "DELETE"]
    return [
        {"apiGroups": [group], "apiVersions": ["*"], "resources": resources, "operations": operations[:]}
        for group, resources in plurals.items()
    ]


if __name__ == "__main__":
    print("# `make manifests` writes this from operator/llm_operator/kinds.py.")
    print(yaml.safe_dump({"rules": rules(), "children": children()}, sort_keys=False), end="")
