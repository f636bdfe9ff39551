"""Tiers of tests, disjoint sets that add up to all.

`make test` runs the default tier: each promised behaviour with real parts, and every case that is cheap. `make test
TIER=more` runs tests marked `more`: matrices, corners and regressions that cost. Those marked `thorough`, and the GPU
kernels in Triton's interpreter, are exhaustive; `make test TIER=all` runs them too, with more generated examples.
"""

from collections.abc import Callable, Collection, Iterable
from typing import Any

import pytest

# What pytest's -m is for each tier; a test with both markers is thorough. `make e2e` runs the end-to-end tests.
SELECTIONS = {
    "default": "not e2e and not more and not thorough",
    "more": "not e2e and more and not thorough",
    "thorough": "not e2e and thorough",
    "all": "not e2e",
}


def tiered(
    cases: Iterable[Any],
    *default: Any,
    more: Collection[Any] = (),
    ids: Callable[[Any], str | None] | None = None,
) -> list[Any]:
    """Return the cases for `pytest.mark.parametrize`: those in `default` unmarked, others in `more`, the rest thorough.

    A case may be a tuple of several arguments; `ids` names a case. Raises ValueError for a default that is not a case.
    """
    listed = list(cases)
    if missing := [case for case in (*default, *more) if case not in listed]:
        raise ValueError(f"no such cases: {missing}")

    def marks_of(case: Any) -> Any:
        if case in default:
            return ()
        return pytest.mark.more if case in more else pytest.mark.thorough

    return [
        pytest.param(
            *(case if type(case) is tuple else (case,)),  # a NamedTuple is one argument
            marks=marks_of(case),
            id=ids(case) if ids else None,
        )
        for case in listed
    ]
