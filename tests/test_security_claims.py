"""The security pages: docs/security-tests.yaml has tests for each of their claims, and each test exists."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
PAGES = ("SECURITY.md", "docs/security.md")
# Sections that claim nothing of the code.
OTHERS = {"Supported versions", "Report a vulnerability", "What is not covered"}
# The names of tests by the beginning of a claim, by heading, by page.
TESTS: dict[str, dict[str, dict[str, list[str]]]] = yaml.safe_load(
    (ROOT / "docs/security-tests.yaml").read_text()
)


def claims(page: str) -> Iterator[tuple[str, str]]:
    """Yield each paragraph, bullet and row of a table, which are one line each, as plain text, with its heading."""
    _, *sections = re.split(r"^## ", (ROOT / page).read_text(), flags=re.MULTILINE)
    for section in sections:
        heading, *lines = section.splitlines()
        if heading in OTHERS:
            continue
        for line, following in zip(lines, [*lines[1:], ""], strict=True):
            is_head_of_table = line.startswith("|--") or following.startswith("|--")
            if line and not line.startswith("### ") and not is_head_of_table:
                yield heading, plain(line)


def plain(line: str) -> str:
    """Return a line without the marks of lists, tables, links, code and bold text."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", line)
    return re.sub(r"^(- |\| )|\*\*|`", "", text)


@pytest.mark.parametrize("page", PAGES)
def test_each_claim_has_tests(page: str) -> None:
    found = list(claims(page))
    assert found
    for heading, claim in found:
        tests = [names for beginning, names in TESTS[page][heading].items() if claim.startswith(beginning)]
        assert len(tests) == 1, claim
        assert tests[0], claim


@pytest.mark.parametrize("page", PAGES)
def test_tests_are_those_of_claims_that_the_page_makes(page: str) -> None:
    found = list(claims(page))
    unknown = [
        beginning
        for heading, tests in TESTS[page].items()
        for beginning in tests
        if not any(heading == place and claim.startswith(beginning) for place, claim in found)
    ]
    assert unknown == []


def test_each_named_test_exists() -> None:
    defined: set[str] = set()
    for file in (ROOT / "tests").rglob("test_*.py"):
        defined.update(re.findall(r"^\s*(?:async )?def (test_\w+)", file.read_text(), re.MULTILINE))
    claimed = [names for page in TESTS.values() for tests in page.values() for names in tests.values()]
    named = {name for names in claimed for name in names}
    assert named - defined == set()
