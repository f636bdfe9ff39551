"""docs/security.md: each claim names a test, and each test that it names exists."""

import re
from itertools import takewhile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "security.md").read_text()
NAMED = sorted(set(re.findall(r"`(test_\w+)`", TEXT)))
FILES = sorted(set(re.findall(r"`(tests/[\w/]+\.py)`", TEXT)))


def rows(header: str) -> list[str]:
    """Return the rows of the table with this header."""
    _, _, rest = TEXT.partition(header)
    assert rest, header
    return list(takewhile(lambda line: line.startswith("|"), rest.splitlines()[2:]))


@pytest.fixture(scope="module")
def defined() -> set[str]:
    """The names of all tests."""
    found: set[str] = set()
    for file in (ROOT / "tests").rglob("test_*.py"):
        found.update(re.findall(r"^\s*(?:async )?def (test_\w+)", file.read_text(), re.MULTILINE))
    return found


@pytest.mark.parametrize("name", NAMED)
def test_each_named_test_exists(name: str, defined: set[str]) -> None:
    assert name in defined


@pytest.mark.parametrize("file", FILES)
def test_each_named_file_of_tests_exists(file: str) -> None:
    assert (ROOT / file).is_file()


def test_each_claim_about_a_sender_names_a_test() -> None:
    claims = rows("| sender | tries | what happens | shown by |")
    assert claims
    for claim in claims:
        *_, shown_by, _ = claim.split("|")
        assert re.search(r"`(test_|tests/)", shown_by), claim
