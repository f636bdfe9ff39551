"""Every field of the spec has an effect: on the children, the status, the autoscaler's decisions, or the router."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from generated_specs import LIKELY, PATHS, Schema, Strategy, values
from hypothesis import HealthCheck, Phase, find, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample
from llm_operator.api.schema import SpecError
from llm_operator.api.spec import parse
from llm_operator.autoscaling.decision import decide as decide_replicas
from llm_operator.autoscaling.history import History, Load, Sample
from llm_operator.control.watching.scales import scale_of
from llm_operator.crd import root_schema
from llm_operator.observed import KeyHashes, Observed
from llm_operator.plan.decide import decide
from llm_operator.settings import Settings
from llm_operator.status.assess import assess

from engine_server.contract.cluster import labels
from engine_server.contract.cluster.api import API_VERSION, KIND
from engine_server.router.sources.kubernetes import objects

Spec = dict[str, Any]

SETTINGS = Settings(
    engine_image="engine:1",
    profiles={name: {"podTemplate": {"spec": {"nodeSelector": {"gpu": name}}}} for name in ("a", "b")},
)
# Between them they have an item of each list, and what the rules of a field ask for.
SPECS: tuple[Spec, ...] = (
    {
        "model": {
            "uri": "hf://a/b",
            "secretRef": {"name": "a"},
            "servedNames": ["a"],
            "cache": {"size": "1Gi"},
        },
        "resources": {"gpu": 1},
        "serviceAccount": {"imagePullSecrets": [{"name": "a"}]},
    },
    {"model": {"uri": "hf://a/b", "cache": {"claim": "a"}}, "rollout": {"maxUnavailable": 1}},
    {
        "model": {"uri": "hf://a/b"},
        "engine": {
            "args": ["--x"],
            "env": [
                {"name": "A", "value": "a"},
                {"name": "B", "valueFrom": {"secretKeyRef": {"name": "a", "key": "a"}}},
                {"name": "C", "valueFrom": {"configMapKeyRef": {"name": "a", "key": "a"}}},
                {"name": "D", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            ],
            "envFrom": [{"configMapRef": {"name": "a"}}, {"secretRef": {"name": "a"}}],
            "files": [
                {"path": "/etc/a", "content": "a"},
                {"path": "/etc/b", "configMap": {"name": "a", "key": "a"}},
                {"path": "/etc/c", "secret": {"name": "a", "key": "a"}},
            ],
        },
        "adapters": [{"name": "a-adapter", "uri": "s3://bucket/a"}],
    },
    {"model": {"uri": "hf://a/b"}, "autoscaling": {"min": 0, "max": 5, "targetInFlight": 4}},
)
# Values that a generator would not find.
GIVEN = {
    "profile": st.sampled_from("ab"),
    "model.uri": LIKELY["model.uri"],
    "podTemplate": LIKELY["podTemplate"],
    "adapters.[].uri": st.sampled_from(["a/b", "s3://bucket/a", "/m/a"]),
    "engine.args.[]": LIKELY["engine.args[]"],
    "engine.files.[].path": PATHS,
}
# They are written for comparisons alone.
RECORDS = {
    labels.SPEC_HASH_ANNOTATION,
    labels.POD_TEMPLATE_ANNOTATION,
    labels.RECORD_HASH_ANNOTATION,
    labels.FETCH_SPEC_ANNOTATION,
}


def leaves(schema: Schema, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Schema]]:
    """Yield the path of each field that has no further ones, with its schema; `[]` stands for an item."""
    if ".".join(path) in GIVEN:
        yield path, schema
    elif "properties" in schema:
        for name, part in schema["properties"].items():
            yield from leaves(part, (*path, name))
    elif "items" in schema:
        yield from leaves(schema["items"], (*path, "[]"))
    else:
        yield path, schema


LEAVES = {".".join(path): (path, schema) for path, schema in leaves(root_schema()["properties"]["spec"])}


def with_value(spec: Any, path: tuple[str, ...], value: object) -> Iterator[Any]:
    """Yield copies of a spec with a value at a path: one for each item, if it leads through a list."""
    first, *rest = path
    if first == "[]":
        for place in range(len(spec)):
            for item in with_value(spec[place], tuple(rest), value) if rest else [value]:
                yield [*spec[:place], item, *spec[place + 1 :]]
    elif not rest:
        yield {**spec, first: value}
    elif first in spec or rest[0] != "[]":
        for inner in with_value(spec.get(first, {}), tuple(rest), value):
            yield {**spec, first: inner}


def effect(spec: Spec) -> str | None:
    """Return all that follows from a spec, None if it is refused."""
    subject: dict[str, Any] = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": "a",
            "namespace": "default",
            "uid": "u-1",
            "generation": 1,
            "resourceVersion": "1",
        },
        "spec": spec,
    }
    try:
        parsed = parse(subject)
    except SpecError:
        return None
    hashes = KeyHashes(admin=("sha256:1",))
    model = {name: value for name, value in spec["model"].items() if name != "cache"}
    uncached = {**subject, "spec": {**spec, "model": model}}
    decisions = [decide(Observed(key_hashes=hashes, subject=each), SETTINGS) for each in (subject, uncached)]
    if any(decision.refusal for decision in decisions):
        return None
    children = [copy.deepcopy(list(decision.plan.apply.values())) for decision in decisions]
    forget_records(children)
    status = assess(parsed.spec, Observed(subject=subject))
    routed = msgspec.convert(spec, objects.Spec)
    return json.dumps(
        [children, status.as_manifest(), scaled(subject), msgspec.to_builtins(routed)], default=str
    )


def forget_records(value: Any) -> None:
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        forget_records(inner)
    if isinstance(value, dict):
        for name in RECORDS & value.keys():
            del value[name]


def scaled(subject: dict[str, Any]) -> list[Any]:
    """Return the decisions on replicas in a minute with requests and a burst, and a quarter of an hour after it."""
    scale = scale_of(subject)
    if scale is None:
        return []
    history, replicas, decisions = History(), 1, []
    for second in range(900):
        requests = 40.0 if second in (20, 21, 22) else 9.0 if second < 60 else 0.0
        idle = max(0.0, second - 60.0)
        sample = Sample(float(second), Load(requests, 0.0), idle, is_complete=True, is_ready=True)
        demand = history.record(sample, scale.autoscaling)
        replicas = decide_replicas(scale.autoscaling, replicas, replicas, demand).replicas
        decisions.append(replicas)
    return decisions


def near(drawn: Strategy, schema: Schema) -> Strategy:
    """Return values that make a difference soon: a delay of a day does not."""
    if schema.get("type") != "integer":
        return drawn
    least = schema.get("minimum", 0)
    return st.integers(least, least + 60)


@pytest.mark.parametrize("name", LEAVES)
def test_each_field_of_the_spec_changes_what_follows_from_it(name: str) -> None:
    path, schema = LEAVES[name]
    drawn = GIVEN[name] if name in GIVEN else near(values(schema, {}, name), schema)

    def differ(pair: tuple[object, object]) -> bool:
        return any(
            None not in (one := effect(first), other := effect(second)) and one != other
            for spec in SPECS
            for first, second in zip(
                with_value(spec, path, pair[0]), with_value(spec, path, pair[1]), strict=True
            )
        )

    chosen = settings(
        max_examples=200, derandomize=True, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    try:
        find(st.tuples(drawn, drawn), differ, settings=chosen)
    except NoSuchExample:
        pytest.fail(f"nothing reads spec.{name}, or no spec of SPECS has its place")
