"""The tiers of the tests: disjoint, and together all tests."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from run import END_TO_END, KERNELS, TESTS, divide
from tiers import SELECTIONS, tiered

# Tests with every combination of the markers that tell tiers apart.
MARKED = """
import itertools, pytest

NAMES = ("e2e", "more", "thorough")
CASES = [names for count in range(4) for names in itertools.combinations(NAMES, count)]

def marked(names):
    return pytest.param(None, marks=[getattr(pytest.mark, name) for name in names], id="-".join(names))

@pytest.mark.parametrize("case", [marked(names) for names in CASES])
def test_marked(case): ...
"""
# Prints the names that pytest selects in a file for each of some expressions, as JSON.
COLLECT = """
import json, sys
import pytest

class Collected:
    def pytest_collection_finish(self, session):
        self.names = [item.callspec.id for item in session.items]

def select(expression):
    collected = Collected()
    pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", "-m", expression, sys.argv[1]], [collected])
    return collected.names

print(json.dumps({tier: select(expression) for tier, expression in json.loads(sys.argv[2]).items()}))
"""


def test_a_test_with_any_markers_is_in_exactly_one_tier(tmp_path: Path) -> None:
    file = tmp_path / "test_marked.py"
    file.write_text(MARKED)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = e2e\n    more\n    thorough\n")
    command = [sys.executable, "-c", COLLECT, file, json.dumps(SELECTIONS)]
    bare = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}

    done = subprocess.run(command, env=bare, check=True, capture_output=True, text=True)

    assert json.loads(done.stdout.splitlines()[-1]) == {
        "default": [""],
        "more": ["more"],
        "thorough": ["thorough", "more-thorough"],
        "all": ["", "more", "thorough", "more-thorough"],
    }


def test_end_to_end_tests_are_those_of_their_folder() -> None:
    mark = f"pytest.mark.{END_TO_END}"
    marked = {file for file in TESTS.rglob("test_*.py") if mark in file.read_text()}

    assert marked == {*(TESTS / END_TO_END).glob("test_*.py")}


def test_kernels_run_with_all_tiers_alone() -> None:
    files = sorted(TESTS.rglob("test_*.py"))
    every, others = (
        {path for part in divide(files, every_tier) for path in part.paths} for every_tier in (True, False)
    )

    assert every - others == {*(TESTS / KERNELS).glob("test_*.py")}


def test_cases_of_a_matrix_are_divided_among_the_tiers() -> None:
    cases = tiered(["a", "b", "c"], "a", more=["a", "b"])

    assert [[mark.name for mark in case.marks] for case in cases] == [[], ["more"], ["thorough"]]


def test_a_case_that_is_none_cannot_be_put_into_a_tier() -> None:
    with pytest.raises(ValueError, match=r"no such cases: \['c'\]"):
        tiered(["a", "b"], "a", more=["c"])
