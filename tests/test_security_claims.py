"""The security pages: each claim names a test, and each test that it names exists."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = ("SECURITY.md", "docs/security.md")
# Sections that claim nothing of the code.
OTHERS = {"Supported versions", "Report a vulnerability", "What is not covered"}
NAME = re.compile(r"`(test_\w+)`")


def claims(page: str) -> Iterator[str]:
    """Yield the paragraphs, bullets and rows of tables below the headings, each of which is one line."""
    _, *sections = re.split(r"^## ", (ROOT / page).read_text(), flags=re.MULTILINE)
    for section in sections:
        title, *lines = section.splitlines()
        if title in OTHERS:
            continue
        for line, following in zip(lines, [*lines[1:], ""], strict=True):
            is_head_of_table = line.startswith("|--") or following.startswith("|--")
            if line and not line.startswith("### ") and not is_head_of_table:
                yield line


@pytest.fixture(scope="module")
def defined() -> set[str]:
    """The names of all tests."""
    found: set[str] = set()
    for file in (ROOT / "tests").rglob("test_*.py"):
        found.update(re.findall(r"^\s*(?:async )?def (test_\w+)", file.read_text(), re.MULTILINE))
    return found


@pytest.mark.parametrize("page", PAGES)
def test_each_named_test_exists(page: str, defined: set[str]) -> None:
    named = set(NAME.findall((ROOT / page).read_text()))
    assert named - defined == set()


@pytest.mark.parametrize("page", PAGES)
def test_each_claim_names_a_test(page: str) -> None:
    found = list(claims(page))
    assert found
    assert [claim for claim in found if not NAME.search(claim)] == []
