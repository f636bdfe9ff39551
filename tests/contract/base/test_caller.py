"""The caller of a request, as the router reports it to engines."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_server.contract.base.caller import MAX_PRIORITY, ReportedCaller, pseudonym

CALLER = ReportedCaller("0123456789abcdef" * 2, "f" * 32, -10)


@given(st.integers(-MAX_PRIORITY, MAX_PRIORITY))
def test_header_is_read_as_it_was_written(priority: int) -> None:
    caller = ReportedCaller(CALLER.id, CALLER.scope, priority)
    assert ReportedCaller.parse(caller.value()) == caller


def test_header_of_a_later_release_may_have_further_pairs() -> None:
    assert ReportedCaller.parse(f"{CALLER.value()}, weight=3") == CALLER


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (r"^", " "),
        (r"id=.", "id="),
        (r"id=", "id=0"),
        (r"f,", "F,"),
        (r"-10", "1.5"),
        (r"-10", ""),
        (r"-10", "9" * 19),
        (r"-10", "\u0663"),
        (r"priority.*", ""),
        (r"$", ";"),
        (r".*", ""),
    ],
)
def test_other_values_are_no_caller(old: str, new: str) -> None:
    value = re.sub(old, new, CALLER.value(), count=1)
    assert ReportedCaller.parse(value) is None


@given(st.text())
def test_no_value_raises(value: str) -> None:
    assert ReportedCaller.parse(value) is None


def test_pseudonyms_depend_on_root_key_kind_and_name_and_do_not_show_them() -> None:
    names = {
        pseudonym(root, kind, name)
        for root in (b"one", b"two")
        for kind in ("caller", "scope")
        for name in ("team-a", "team-b", "*")
    }
    assert len(names) == 12
    assert all(re.fullmatch("[0-9a-f]{32}", name) for name in names)
