"""Specs generated from the CRD's schema."""

from collections.abc import Iterator, Mapping
from typing import Any

from hypothesis import strategies as st
from llm_operator.crd import root_schema

Schema = dict[str, Any]
Strategy = st.SearchStrategy[Any]

LONGEST_LIST = 3
WORDS = st.text("abcxyz", min_size=1, max_size=6)
JSON: Strategy = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda children: (
        st.lists(children, max_size=2) | st.dictionaries(st.text(max_size=5), children, max_size=2)
    ),
    max_leaves=6,
)
NAMES = st.sampled_from(
    [
        *(
            "metadata",
            "spec",
            "labels",
            "annotations",
            "containers",
            "initContainers",
            "name",
            "image",
            "args",
        ),
        *("env", "value", "volumes", "emptyDir", "hostPath", "volumeMounts", "mountPath", "ports"),
        *("containerPort", "hostPort", "securityContext", "capabilities", "add", "sysctls"),
    ]
)
# Objects with the field names of pods in any place.
DISORDER: Strategy = st.dictionaries(
    NAMES,
    st.recursive(
        st.none() | st.booleans() | st.integers(0, 70000) | NAMES,
        lambda children: st.lists(children, max_size=3) | st.dictionaries(NAMES, children, max_size=4),
        max_leaves=12,
    ),
    max_size=3,
)
POD_TEMPLATES = st.fixed_dictionaries(
    {},
    optional={
        "metadata": st.just({"annotations": {"a": "b"}}),
        "spec": st.sampled_from(
            [
                {"nodeSelector": {"gpu": "h200"}},
                {"terminationGracePeriodSeconds": 99},
                {"volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}]},
                {"containers": [{"name": "engine", "lifecycle": None, "env": [{"name": "X", "value": "é"}]}]},
            ]
        ),
    },
)
CONFINED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
# A podTemplate with a value at every depth.
FULL_TEMPLATE: dict[str, Any] = {
    "metadata": {"labels": {"a": "b"}, "annotations": {"a": "b"}},
    "spec": {
        "nodeSelector": {"gpu": "h200"},
        "tolerations": [{"key": "spot", "operator": "Exists"}],
        "imagePullSecrets": [{"name": "registry"}],
        "securityContext": {"fsGroup": 5},
        "resourceClaims": [{"name": "gpu"}],
        "containers": [
            {
                "name": "engine",
                "image": "engine:9",
                "args": ["--seed=1"],
                "env": [{"name": "X", "value": "y"}],
                "ports": [{"containerPort": 9000}],
                "resources": {"limits": {"cpu": "1"}},
                "securityContext": {"runAsUser": 5, "capabilities": {"drop": ["ALL"]}},
                "volumeMounts": [{"name": "shm", "mountPath": "/x"}],
                "lifecycle": {"preStop": {}},
            },
            {"name": "sidecar", "image": "sidecar:1", "securityContext": CONFINED},
        ],
        "initContainers": [
            {
                "name": "model",
                "env": [{"name": "X", "value": "y"}],
                "resources": {"limits": {"cpu": "1"}},
                "securityContext": {"runAsUser": 5},
                "volumeMounts": [{"name": "shm", "mountPath": "/x"}],
            }
        ],
        "volumes": [
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
            {"name": "own", "projected": {"sources": [{"configMap": {"name": "x"}}]}},
            {"name": "weights", "image": {"reference": "weights:1"}},
        ],
    },
}
WRONG: Strategy = st.sampled_from(
    [
        None,
        {},
        [],
        "text",
        5,
        False,
        [None],
        [{}],
        {"a": None},
        {"name": None},
        [{"name": None}],
        [{"name": "model"}],
    ]
)


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the keys and indices that lead to each value within a value."""
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, inner in steps:
        yield (*place, step)
        yield from places(inner, (*place, step))


def with_value_at(value: Any, place: tuple[Any, ...], other: object) -> Any:
    """Return a copy with another value at a place."""
    if not place:
        return other
    first, *rest = place
    copied = value.copy()
    copied[first] = with_value_at(value[first], tuple(rest), other)
    return copied


# Nulls, wrong types and empty values anywhere.
DISTURBED_TEMPLATES = st.builds(
    lambda place, other: with_value_at(FULL_TEMPLATE, place, other),
    st.sampled_from([*places(FULL_TEMPLATE)]),
    WRONG,
)
# Fields of pods that the schema does not describe, and so admits with any value.
UNDESCRIBED = st.sampled_from(
    [
        *("securityContext", "ephemeralContainers", "hostNetwork", "serviceAccountName", "hostAliases"),
        *("ports", "lifecycle", "livenessProbe", "terminationGracePeriodSeconds", "emptyDir"),
    ]
)
ENTRIES = st.fixed_dictionaries({"name": WORDS, "key": WORDS})
PATHS = WORDS.map("/etc/{}".format)
FILES = st.one_of(
    st.fixed_dictionaries({"path": PATHS, kind: values})
    for kind, values in {"content": WORDS, "configMap": ENTRIES, "secret": ENTRIES}.items()
)
OBJECTS = st.fixed_dictionaries({"name": WORDS})
# Values for fields whose rules, in CEL, a generator cannot read.
LIKELY: Mapping[str, Strategy] = {
    "model.uri": st.sampled_from(["a/b", "hf://a/b@r", "pvc://c/d/e", "pypi://p", "/m"]),
    "model.servedNames[]": WORDS,
    "engine.args[]": WORDS.map("--x{}".format),
    "engine.env[]": st.builds(lambda name, value: {"name": name, "value": value}, WORDS, WORDS),
    "engine.envFrom[]": st.one_of(
        st.fixed_dictionaries({kind: OBJECTS}) for kind in ("configMapRef", "secretRef")
    ),
    "engine.files[]": FILES,
    "adapters[]": st.fixed_dictionaries(
        {"name": WORDS.map("{}-adapter".format), "uri": st.sampled_from(["a/b", "s3://bucket/a", "/m/a"])}
    ),
    "profile": st.just("gpu-l4"),
    "model.cache": st.sampled_from(
        [
            {"size": "1Gi"},
            {"size": "1Gi", "class": "fast"},
            {"size": "1Gi", "accessMode": "ReadWriteMany"},
            {"claim": "mine"},
        ]
    ),
    "podTemplate": POD_TEMPLATES,
}


def specs(fields: Mapping[str, Strategy]) -> Strategy:
    """Return specs that the schema admits, with the given values for some fields."""
    return values(root_schema()["properties"]["spec"], fields, "")


def single_fields(fields: Mapping[str, Strategy]) -> dict[str, Strategy]:
    """Return the values of every field of the schema by its path; of those that `fields` has as a whole."""

    def below(schema: Schema, path: str) -> Iterator[tuple[str, Strategy]]:
        if path in fields or "properties" not in schema:
            yield path, values(schema, fields, path)
            return
        for name, part in schema["properties"].items():
            yield from below(part, f"{path}.{name}".removeprefix("."))

    return dict(below(root_schema()["properties"]["spec"], ""))


def changed(spec: Any, path: str, value: object) -> Any:
    """Return a spec with another value at a path; None removes it."""
    name, _, rest = path.partition(".")
    inner = changed(spec.get(name, {}), rest, value) if rest else value
    return {key: each for key, each in {**spec, name: inner}.items() if each is not None}


def values(schema: Schema, fields: Mapping[str, Strategy], path: str) -> Strategy:
    """Return JSON values that fulfil a structural schema, but for its rules in CEL."""
    if path in fields:
        return fields[path]
    if schema.get("nullable"):
        return st.none() | values({**schema, "nullable": False}, fields, path)
    if "anyOf" in schema:
        arms = [{**schema, **arm} for arm in schema["anyOf"]]
        return st.one_of(
            *(values({k: v for k, v in arm.items() if k != "anyOf"}, fields, path) for arm in arms)
        )
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    match schema["type"]:
        case "object":
            return objects(schema, fields, path)
        case "array":
            most = min(LONGEST_LIST, schema.get("maxItems", LONGEST_LIST))
            keys = schema.get("x-kubernetes-list-map-keys", ())
            return st.lists(
                values(schema["items"], fields, f"{path}[]"),
                max_size=most,
                unique_by=lambda item: str([item[key] for key in keys] if keys else item),
            )
        case "string" if "pattern" in schema:
            return st.from_regex(schema["pattern"], fullmatch=True, alphabet=st.characters(max_codepoint=127))
        case "string":
            return st.text(min_size=schema.get("minLength", 0), max_size=8)
        case "integer":
            return st.integers(schema.get("minimum", -100), schema.get("maximum", 10**6))
        case "boolean":
            return st.booleans()
    raise AssertionError(f"the generator does not know {path}: {schema}")


def objects(schema: Schema, fields: Mapping[str, Strategy], path: str) -> Strategy:
    if "additionalProperties" in schema:
        inner = values(schema["additionalProperties"], fields, f"{path}.*")
        return st.dictionaries(st.text(max_size=5), inner, max_size=2)
    if "properties" not in schema:
        return st.dictionaries(st.text(max_size=5), JSON, max_size=2)
    required = schema.get("required", ())
    parts = {
        name: values(part, fields, f"{path}.{name}".removeprefix("."))
        for name, part in schema["properties"].items()
    }
    described = st.fixed_dictionaries(
        {name: part for name, part in parts.items() if name in required},
        optional={name: part for name, part in parts.items() if name not in required},
    )
    if "x-kubernetes-preserve-unknown-fields" not in schema:
        return described
    others = st.dictionaries(UNDESCRIBED, JSON, max_size=3)
    return st.builds(lambda known, other: other | known, described, others)
