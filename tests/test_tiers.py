"""The tiers of the tests: disjoint, and together all tests."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from run import TESTS, divide
from tiers import SELECTIONS, tiered

# Prints the markers of each test below the paths as JSON.
COLLECT = """
import json, sys
import pytest

class Collected:
    def pytest_collection_finish(self, session):
        self.markers = {item.nodeid: [mark.name for mark in item.iter_markers()] for item in session.items}

collected = Collected()
pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", "-m", "", *sys.argv[1:]], [collected])
print(json.dumps(collected.markers))
"""


def collect(*paths: Path) -> dict[str, list[str]]:
    """Return the markers of all tests below the paths by the tests' ids."""
    environment = os.environ | {
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": ""
    }  # with all plugins that conftest files name
    command = [sys.executable, "-c", COLLECT, *map(str, paths)]
    done = subprocess.run(
        command, cwd=TESTS.parent, env=environment, check=True, capture_output=True, text=True
    )
    markers: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    return markers


def select(tier: str, markers: dict[str, list[str]]) -> set[str]:
    """Return the ids of the tests that the tier's expression selects, which is one of Python's too."""
    names = ("e2e", "more", "thorough")
    return {
        id for id, marks in markers.items() if eval(SELECTIONS[tier], {name: name in marks for name in names})
    }


@pytest.mark.more
def test_every_test_is_in_exactly_one_tier() -> None:
    markers = collect(TESTS)
    parts = divide(sorted(TESTS.rglob("test_*.py")), every_tier=False)
    files = {str(path.relative_to(TESTS.parent)) for part in parts for path in part.paths}
    run_by_default = {id for id in markers if id.partition("::")[0] in files}

    tiers = {tier: select(tier, markers) for tier in SELECTIONS}

    default, more = tiers["default"] & run_by_default, tiers["more"] & run_by_default
    assert default and more and not default & more
    only_in_all = tiers["all"] - default - more
    assert {id for id in only_in_all if "thorough" not in markers[id]} == {
        id for id in tiers["all"] - tiers["thorough"] if id.startswith("tests/kernels/")
    }


MARKED = """
import pytest
def test_default(): ...
@pytest.mark.more
def test_more(): ...
@pytest.mark.thorough
def test_thorough(): ...
@pytest.mark.more
@pytest.mark.thorough
def test_of_both(): ...
"""


def test_a_test_with_both_markers_is_thorough_alone(tmp_path: Path) -> None:
    file = tmp_path / "test_marked.py"
    file.write_text(MARKED)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = more\n    thorough\n")

    markers = collect(file)

    names = {tier: sorted(id.rpartition("::")[2] for id in select(tier, markers)) for tier in SELECTIONS}
    assert names == {
        "default": ["test_default"],
        "more": ["test_more"],
        "thorough": ["test_of_both", "test_thorough"],
        "all": ["test_default", "test_more", "test_of_both", "test_thorough"],
    }


def test_cases_of_a_matrix_are_divided_among_the_tiers() -> None:
    cases = tiered(["a", "b", "c"], "a", more=["a", "b"])

    assert [[mark.name for mark in case.marks] for case in cases] == [[], ["more"], ["thorough"]]


def test_a_case_that_is_none_cannot_be_put_into_a_tier() -> None:
    with pytest.raises(ValueError, match=r"no such cases: \['c'\]"):
        tiered(["a", "b"], "a", more=["c"])
