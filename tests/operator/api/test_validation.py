"""Validation against msgspec itself, and against the API's own types."""

from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llm_operator.api.schema import SpecError
from llm_operator.api.spec import LLMDeploymentSpec
from llm_operator.api.validation import check, suggestion
from msgspec import Meta, inspect

SPEC = inspect.type_info(LLMDeploymentSpec)
NAMES = st.sampled_from(
    [
        "uri",
        "servedNames",
        "args",
        "env",
        "name",
        "value",
        "gpu",
        "cpu",
        "min",
        "max",
        "strategy",
        "policy",
        "x",
        1,
    ]
)
SECTIONS = st.sampled_from(
    ["model", "engine", "resources", "replicas", "autoscaling", "routing", "rollout", "podTemplate", "other"]
)
SCALARS = st.one_of(
    st.booleans(),
    st.integers(-2, 2**33),
    st.floats(allow_nan=False),
    st.sampled_from(["", "a/b", "4", "x" * 300]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(SECTIONS, VALUES, max_size=4), st.booleans())
def test_accepts_no_value_that_msgspec_cannot_convert(sections: dict[str, Any], has_model: bool) -> None:
    spec = ({"model": {"uri": "a/b"}} if has_model else {}) | sections
    try:
        check(spec, SPEC)
    except SpecError as error:
        assert error.path and error.problem
    else:
        msgspec.convert(spec, LLMDeploymentSpec)


@given(VALUES)
def test_accepts_what_msgspec_converts_without_rules(value: Any) -> None:
    class Plain(msgspec.Struct, forbid_unknown_fields=True):
        uri: Annotated[str, Meta(min_length=1, max_length=5, pattern="a")] = "a"
        gpu: Annotated[int, Meta(ge=0, le=5)] = 0
        cpu: int | str | None = None
        args: tuple[str, ...] = ()
        env: dict[str, Any] = {}
        policy: Literal["4", "x"] = "x"

    try:
        msgspec.convert(value, Plain)
    except msgspec.ValidationError:
        with pytest.raises(SpecError):
            check(value, inspect.type_info(Plain))
    else:
        check(value, inspect.type_info(Plain))


def test_a_type_that_the_api_does_not_use_is_an_error_of_ours() -> None:
    with pytest.raises(TypeError, match="the API has no fields of type"):
        check(1.5, inspect.type_info(float))


def test_suggests_the_closest_path() -> None:
    paths = ["spec.engine", "spec.engine.maxModelLen", "spec.replicas"]

    assert suggestion("maxModelLn", paths) == "; did you mean spec.engine.maxModelLen?"
    assert suggestion("quantum", paths) == ""
