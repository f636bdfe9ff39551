"""The tiers of the tests: disjoint, and together all tests."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from run import TESTS, divide
from tiers import SELECTIONS, tiered

# Collects the files of a run once for each selection, in one process, and prints the ids of each as JSON.
COLLECT = """
import json, sys
import pytest

class Collected:
    def pytest_collection_finish(self, session):
        self.ids = [item.nodeid for item in session.items]

found = {}
for selection, paths in json.loads(sys.argv[1]).items():
    collected = Collected()
    options = ["--collect-only", "-q", "-p", "no:cacheprovider"]
    pytest.main([*options, "-m", selection, *paths], [collected])
    found[selection] = collected.ids
print(json.dumps(found))
"""


def collect(paths: dict[str, list[str]]) -> dict[str, list[str]]:
    """Return the ids of the tests in files by the selection of a tier."""
    command = [sys.executable, "-c", COLLECT, json.dumps(paths)]
    done = subprocess.run(command, cwd=TESTS.parent, check=True, capture_output=True, text=True)
    ids: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    return ids


def paths_of(tier: str) -> list[str]:
    files = sorted(TESTS.rglob("test_*.py"))
    return [str(path) for part in divide(files, every_tier=tier == "all") for path in part.paths]


@pytest.mark.more
def test_every_test_is_in_exactly_one_tier() -> None:
    ids = collect({SELECTIONS[tier]: paths_of(tier) for tier in ("default", "more", "all")})
    default, more, everything = (set(ids[SELECTIONS[tier]]) for tier in ("default", "more", "all"))

    assert default and more
    assert not default & more
    assert default | more < everything
    assert sum(map(len, ids.values())) == len(default) + len(more) + len(everything), "an id is not unique"


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
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = more\n    thorough\n    e2e\n")

    ids = collect({selection: [str(file)] for selection in SELECTIONS.values()})

    names = {tier: [id.rpartition("::")[2] for id in ids[SELECTIONS[tier]]] for tier in SELECTIONS}
    assert names["default"] == ["test_default"]
    assert names["more"] == ["test_more"]
    assert names["thorough"] == ["test_thorough", "test_of_both"]
    assert names["all"] == ["test_default", "test_more", "test_thorough", "test_of_both"]


def test_cases_of_a_matrix_are_divided_among_the_tiers() -> None:
    cases = tiered(["a", "b", "c"], "a", more=["a", "b"])

    assert [[mark.name for mark in case.marks] for case in cases] == [[], ["more"], ["thorough"]]


def test_a_case_that_is_none_cannot_be_put_into_a_tier() -> None:
    with pytest.raises(ValueError, match=r"no such cases: \['c'\]"):
        tiered(["a", "b"], "a", more=["c"])
