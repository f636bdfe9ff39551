"""Checks of single values."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_server import InvalidRequestError
from engine_server.requests import validation as valid


class Whole(int):
    """A subclass of int."""


class Real(float):
    """A subclass of float."""


class Text(str):
    """A subclass of str."""


@pytest.mark.parametrize("value", [True, 1.0, "1", None, 2**64, -(2**63) - 1])
def test_values_that_are_not_64_bit_integers_are_refused(value: object) -> None:
    with pytest.raises(InvalidRequestError, match="count is"):
        valid.integer("count", value)


@pytest.mark.parametrize("value", [True, "1", None, math.nan, math.inf, 10**400])
def test_values_that_are_not_finite_numbers_are_refused(value: object) -> None:
    with pytest.raises(InvalidRequestError, match="share is"):
        valid.number("share", value)


def test_bounds_are_named_in_the_message() -> None:
    with pytest.raises(InvalidRequestError, match="n is 0; expected `int` >= 1") as caught:
        valid.integer("n", 0, 1, 5)
    assert caught.value.parameter == "n"
    with pytest.raises(InvalidRequestError, match="n is 6; expected `int` <= 5"):
        valid.integer("n", 6, 1, 5)
    with pytest.raises(InvalidRequestError, match="p is 0; expected `float` > 0"):
        valid.number("p", 0, 0, 1, "exclusive")


def test_subclasses_become_plain_types() -> None:
    assert type(valid.integer("n", Whole(3))) is int
    assert type(valid.number("x", Real(0.5))) is float
    assert type(valid.text("s", Text("a"))) is str


def test_text_with_a_lone_surrogate_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="surrogates"):
        valid.text("stop", "a\ud800")


def test_nested_data_that_refers_to_itself_is_refused() -> None:
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(InvalidRequestError, match="levels"):
        valid.plain_data("extra_args", loop)


data = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(value=data)
def test_data_that_passes_survives_msgpack(value: object) -> None:
    try:
        checked = valid.plain_data("extra_args", value)
    except InvalidRequestError:
        return
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(checked)) == checked
