"""The reasons of conditions in docs/api.md."""

import re
from pathlib import Path

import llm_operator

PACKAGE = Path(llm_operator.__file__).parent
DOCUMENT = Path(__file__).parents[3] / "docs" / "api.md"
# The reason is the first string of a problem, and the second value of a verdict.
REASON = re.compile(r'(?:Problem\(\s*|Verdict\(\s*(?:True|False), )"([A-Z]\w+)"')


def test_every_reason_that_the_operator_gives_is_documented() -> None:
    given = {reason for file in PACKAGE.rglob("*.py") for reason in REASON.findall(file.read_text())}
    assert {"ScaledToZero", "ChildExists", "QuotaExceeded"} <= given
    documented = set(re.findall(r"`([A-Z]\w+)`", DOCUMENT.read_text()))
    assert given - documented == set()
