"""Parsing: accepted manifests, and the errors for others."""

from typing import Any

import msgspec
import pytest
from llm_operator.api import rules
from llm_operator.api.bounds import MOST_SPEC_BYTES, MOST_VALUES
from llm_operator.api.schema import SpecError
from llm_operator.api.spec import parse


def test_parses_every_field(manifest: Any) -> None:
    deployment = parse(
        manifest(
            model={"uri": "hf://a/b@main", "servedNames": ["x", "y"], "secretRef": {"name": "hf"}},
            engine={
                "image": "e:2",
                "maxModelLen": 2048,
                "args": ["--max-num-seqs=64"],
                "env": [{"name": "A"}],
            },
            resources={"gpu": 2, "cpu": 4, "memory": "16Gi"},
            replicas=3,
            autoscaling={"min": 0, "max": 8, "targetInFlight": 32},
            routing={"policy": "least_load"},
            rollout={"strategy": "inPlace", "drainTimeoutSeconds": 5},
            podTemplate={"spec": {"nodeSelector": {"gpu": "h200"}}},
        )
    )
    spec = deployment.spec
    assert deployment.served_names == ("x", "y")
    assert spec.model.secret_ref is not None and spec.model.secret_ref.name == "hf"
    assert (spec.engine.max_model_len, spec.engine.args) == (2048, ("--max-num-seqs=64",))
    assert (spec.resources.gpu, spec.resources.cpu, spec.resources.memory) == (2, 4, "16Gi")
    assert (spec.replicas, spec.rollout.strategy, spec.rollout.drain_timeout_seconds) == (3, "inPlace", 5)
    assert spec.autoscaling is not None and spec.autoscaling.target_in_flight == 32


def test_defaults_of_the_least_manifest(manifest: Any) -> None:
    deployment = parse(manifest())
    assert deployment.served_names == ("smollm2",)
    assert (deployment.namespace, deployment.spec.replicas, deployment.spec.resources.gpus) == (
        "default",
        1,
        0,
    )


def test_accepts_its_own_namespace_and_name_as_a_served_name(manifest: Any) -> None:
    deployment = parse(manifest(model={"uri": "a/b", "servedNames": ["default/smollm2"]}))

    assert deployment.served_names == ("default/smollm2",)


def test_null_counts_as_absent(manifest: Any) -> None:
    assert parse(manifest(engine=None, replicas=None)).spec.replicas == 1


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"replicas": -1}, "spec.replicas: expected `int` >= 0; it is -1"),
        ({"replicas": "2"}, "spec.replicas: expected `int`, got `str`; it is '2'"),
        ({"replicas": True}, "spec.replicas: expected `int`, got `bool`; it is True"),
        ({"resources": {"gpu": -1}}, "spec.resources.gpu: expected `int` >= 0; it is -1"),
        ({"resources": {"cpu": "lots"}}, "it is 'lots'"),
        ({"engine": {"maxModelLn": 1}}, "there is no such field; did you mean spec.engine.maxModelLen?"),
        ({"gpu": 1}, "spec.gpu: there is no such field; did you mean spec.resources.gpu?"),
        ({"quantum": 1}, "spec.quantum: there is no such field"),
        ({"engine": {"args": "--a"}}, "spec.engine.args: expected `array`, got `str`; it is '--a'"),
        ({"engine": []}, "spec.engine: expected `object`, got `array`"),
        ({"model": {}}, "spec.model.uri: this field is required"),
        ({"model": {"uri": "oci://x/y"}}, "it is 'oci://x/y'"),
        ({"model": {"uri": "--help"}}, "spec.model.uri: a model is hf://ORG/NAME[/FILE.gguf][@REVISION], ORG/NAME"),
        ({"model": {"uri": ""}}, "spec.model.uri: expected `str` of length >= 1"),
        ({"model": {"uri": "a/b", "servedNames": ["x", "x"]}}, "spec.model.servedNames: 'x' is there more than once"),
        ({"model": {"uri": "a/b", "servedNames": ["a b"]}}, "no white space"),
        ({"model": {"uri": "a/b", "servedNames": ["a\x1b[2Jb"]}}, "no control characters"),
        ({"model": {"uri": "a/b", "servedNames": ["a\u200bb"]}}, "no control characters"),
        ({"model": {"uri": "a/b", "servedNames": ["a/b/c"]}}, "spec.model.servedNames: a served name has one slash at"),
        ({"model": {"uri": "a/b", "servedNames": ["org/"]}}, "one slash at most, between ORG and NAME"),
        ({"model": {"uri": "a/b", "servedNames": [None]}}, "spec.model.servedNames[0]: expected `str`, got `null`"),
        ({"model": {"uri": "a" * 1025}}, "spec.model.uri: expected `str` of length <= 1024; it is 1025 long"),
        ({"resources": {"cpu": "9" * 309}}, "spec.resources.cpu: expected `str` of length <= 32; it is 309 long"),
        ({"resources": {"cpu": 10**400}}, "spec.resources.cpu: expected `int` <= 9007199254740992; it is 1000"),
        ({"resources": {"cpu": 0.5}}, "spec.resources.cpu: expected `int | str`, got `float`; it is 0.5"),
        ({"podTemplate": {1: 2}}, "spec.podTemplate.1: expected `str`, got `int`; it is 1"),
        ({"engine": {1: 2}}, "spec.engine.1: there is no such field"),
        ({"rollout": {"strategy": "never"}}, "invalid enum value 'never'; allowed: inPlace, surge"),
        ({"autoscaling": {"min": 3, "max": 2}}, "spec.autoscaling: min is more than max"),
        ({"engine": {"env": [{"name": "A"}, {"name": "A"}]}}, "spec.engine.env: 'A' is there more than once"),
    ],
)  # fmt: skip
def test_an_error_names_the_field_the_problem_and_what_is_allowed(
    manifest: Any, spec: dict[str, Any], words: str
) -> None:
    with pytest.raises(SpecError) as caught:
        parse(manifest(**spec))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "argument",
    [
        "--port=1",
        "--port",
        "--host",
        "--max-model-len=4",
        "--max_model_len",
        "--served-model-name=x",
        "--tensor_parallel_size",
    ],
)
def test_flags_that_the_operator_owns_are_refused(manifest: Any, argument: str) -> None:
    with pytest.raises(SpecError, match=r"spec\.engine\.args\[1\]: the operator itself sets"):
        parse(manifest(engine={"args": ["--seed=1", argument]}))


@pytest.mark.parametrize(
    "argument", ["--max-num-seqs=4", "64", "-v", "--", "--dtype", "--model-impl=x", "--tensor-p"]
)
def test_accepts_other_flags(manifest: Any, argument: str) -> None:
    assert parse(manifest(engine={"args": [argument]})).spec.engine.args == (argument,)


@pytest.mark.parametrize("name", ["9lives", "Big", "a.b", "-a", "a-", "a" * 53, "", None, 7])
def test_refuses_a_name_that_no_service_can_have(manifest: Any, name: Any) -> None:
    with pytest.raises(SpecError, match=r"metadata\.name"):
        parse(manifest(name=name))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"apiVersion": "v1"}, "apiVersion"),
        ({"kind": "Model"}, "kind"),
        ({"spec": None}, "spec"),
        ({"metadata": None}, "metadata"),
        ({"specs": {}}, "specs: there is no such field; did you mean spec"),
    ],
)
def test_refuses_what_is_no_llmdeployment(manifest: Any, change: dict[str, Any], field: str) -> None:
    with pytest.raises(SpecError, match=field):
        parse(manifest() | change)


def with_labels(size: int) -> dict[str, Any]:
    """Return a spec of so many bytes as JSON."""
    spec = {"model": {"uri": "hf://org/name"}, "podTemplate": {"metadata": {"labels": {"a": ""}}}}
    labels: dict[str, str] = spec["podTemplate"]["metadata"]["labels"]  # type: ignore[assignment]
    labels["a"] = "x" * (size - len(msgspec.json.encode(spec)))
    return spec


def test_a_spec_that_is_too_large_is_refused_with_both_sizes(manifest: Any) -> None:
    assert parse(manifest(**with_labels(MOST_SPEC_BYTES)))

    with pytest.raises(
        SpecError, match=r"spec: it has 1,048,577 bytes as JSON; at most 1,048,576 are allowed"
    ):
        parse(manifest(**with_labels(MOST_SPEC_BYTES + 1)))


def with_values(count: int, value: object) -> dict[str, Any]:
    """Return a spec of so many values."""
    # The model and its URI, the podTemplate, its spec and the list.
    others = 5
    return {
        "model": {"uri": "hf://org/name"},
        "podTemplate": {"spec": {"list": [value] * (count - others)}},
    }


def test_a_spec_of_too_many_values_is_refused_with_the_bound(manifest: Any) -> None:
    assert parse(manifest(**with_values(MOST_VALUES, {})))

    with pytest.raises(SpecError, match="spec: it has more than 10,000 values; at most so many are allowed"):
        parse(manifest(**with_values(MOST_VALUES + 1, {})))


class Unread(dict[str, Any]):
    """An object that must not be read."""

    def values(self) -> Any:
        pytest.fail("it was read")


def test_values_that_are_too_many_are_not_read(manifest: Any) -> None:
    with pytest.raises(SpecError, match="values"):
        parse(manifest(**with_values(2 * MOST_VALUES, Unread())))


def test_files_of_the_largest_size_are_no_obstacle(manifest: Any) -> None:
    content = "字" * (rules.MOST_FILE_CHARACTERS // 2)
    files = [{"path": f"/etc/{name}", "content": content} for name in ("a", "b")]

    assert len(parse(manifest(engine={"files": files})).spec.engine.files) == 2


def test_values_that_only_yaml_has_are_refused(manifest: Any) -> None:
    with pytest.raises(SpecError, match="spec: it is not JSON"):
        parse(manifest(podTemplate={"metadata": {"labels": {True: "x"}}}))
