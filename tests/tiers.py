"""Cases of parametrized tests by tier: `make test` runs one of each kind, `make test TIER=all` every one."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def tiered(cases: Iterable[Any], *default: Any, ids: Callable[[Any], str | None] | None = None) -> list[Any]:
    """Return the cases for `pytest.mark.parametrize`, all but those in `default` marked thorough.

    A case may be a tuple of several arguments; `ids` names a case. Raises ValueError if a default is not a case.
    """
    listed = list(cases)
    if missing := [case for case in default if case not in listed]:
        raise ValueError(f"no such cases: {missing}")
    return [
        pytest.param(
            *(case if type(case) is tuple else (case,)),  # a NamedTuple is one argument
            marks=() if case in default else pytest.mark.thorough,
            id=ids(case) if ids else None,
        )
        for case in listed
    ]
