"""The table of bounds, which the server's documentation shows."""

import re
from pathlib import Path

import pytest

from engine_server.contract.base.bounds import BOUNDS, Bound

DOCUMENTATION = Path(__file__).parents[3] / "docs" / "server.md"


def test_amount_up_to_the_limit_is_accepted() -> None:
    bound = Bound("prompts", 1024)
    assert bound.exceeded(1024) is None
    assert bound.exceeded(1025) == "there are 1,025 prompts; at most 1,024 are allowed"


@pytest.mark.parametrize("bound", BOUNDS, ids=lambda bound: bound.things)
def test_documentation_shows_the_bound(bound: Bound) -> None:
    row = rf"^\| {re.escape(bound.things)} \| {bound.limit:,} \|$"
    assert re.search(row, DOCUMENTATION.read_text(), re.MULTILINE)
