"""The runner of the tests: one verdict over processes side by side."""

import sys
from pathlib import Path

import pytest
from run import CONTROL_PLANE, TESTS, Part, divide, run
from selection import changed_tests, home_of

PASSES = "def test_it(): pass"
FAILS = "def test_it(): assert False, 'the reason'"
SKIPS = "import pytest\n@pytest.mark.skip(reason='no such device')\ndef test_it(): pass"
BARE = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}  # which takes seconds
IS_KILLED = "import os, signal\ndef test_it(): os.kill(os.getpid(), signal.SIGKILL)"


def parts(folder: Path, monkeypatch: pytest.MonkeyPatch, *sources: str) -> list[Part]:
    """Return a part for each source of a test file."""
    monkeypatch.setattr("run.LOGS", folder / "logs")
    monkeypatch.setattr("run.ROOT", folder)
    (folder / "pytest.ini").write_text("[pytest]\n")
    made = []
    for number, source in enumerate(sources):
        file = folder / f"part{number}" / f"test_{number}.py"
        file.parent.mkdir()
        file.write_text(source)
        made.append(Part(f"part{number}", [file], ("-p", "no:cacheprovider"), BARE))
    return made


def test_counts_of_all_parts_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(parts(tmp_path, monkeypatch, PASSES, PASSES, SKIPS), "default", partial=False)

    lines = capfd.readouterr().out.splitlines()
    assert lines[-1] == "2 passed, 0 failed, 1 skipped"
    assert any(line.endswith("no such device") for line in lines)


@pytest.mark.parametrize("position", [0, 1])
def test_a_failure_in_any_part_fails_the_run_and_is_shown(
    position: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    sources = [PASSES, PASSES]
    sources[position] = FAILS

    assert not run(parts(tmp_path, monkeypatch, *sources), "default", partial=False)

    printed = capfd.readouterr().out
    assert "the reason" in printed and "\nfailed: " in printed
    assert printed.splitlines()[-1] == "1 passed, 1 failed, 0 skipped"


@pytest.mark.parametrize("source", [IS_KILLED, ""], ids=["killed", "empty"])
@pytest.mark.parametrize("position", [0, 1])
def test_a_part_that_is_killed_or_has_no_tests_fails_the_run(
    position: int, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = [PASSES, PASSES]
    sources[position] = source

    assert not run(parts(tmp_path, monkeypatch, *sources), "default", partial=False)


def test_a_partial_run_may_have_a_part_without_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(parts(tmp_path, monkeypatch, PASSES, ""), "default", partial=True)


def test_every_test_file_runs_in_exactly_one_process() -> None:
    files = sorted(TESTS.rglob("test_*.py"))
    divided = [path for part in divide(files, every_tier=True) for path in part.paths]

    elsewhere = {file for file in files if file.relative_to(TESTS).parts[0] == "e2e"}
    assert sorted(divided) == [file for file in files if file not in elsewhere]


def test_folders_of_the_control_plane_exist() -> None:
    assert [area for area in CONTROL_PLANE if not (TESTS / area).is_dir()] == []


def test_changed_source_selects_tests_of_its_folder_and_of_its_importers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("grimp", reason="grimp comes with the dependencies of lint")
    monkeypatch.setattr(
        "selection.list_changes", lambda root: [Path("engine_server/router/callers/ledger.py")]
    )

    selected = {str(path.relative_to(TESTS)) for path in changed_tests(TESTS.parent)}

    assert {"router/callers/test_ledger.py", "router/test_server.py"} <= selected
    assert not any(path.startswith(("core/", "operator/")) for path in selected)


def test_changed_helper_selects_the_tests_that_import_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("selection.list_changes", lambda root: [Path("tests/selection.py")])

    assert changed_tests(TESTS.parent) == [TESTS / f"test_{name}.py" for name in ("costs", "run", "tiers")]


@pytest.mark.parametrize(
    ("source", "home"),
    [
        ("engine_server/core/cache/block_pool.py", "core/cache"),
        ("engine_server/router/server.py", "router"),
        ("operator/llm_operator/plan/pod/pods.py", "operator/plan/pod"),
        ("charts/fairlead/values.yaml", "charts/fairlead"),
        ("README.md", None),
    ],
)
def test_home_of_a_source_is_the_folder_that_mirrors_it(source: str, home: str | None) -> None:
    assert home_of(Path(source)) == home


def test_control_plane_process_cannot_import_torch(tmp_path: Path) -> None:
    import subprocess

    command = [sys.executable, "-c", "import no_torch\nimport torch"]
    done = subprocess.run(command, cwd=TESTS, capture_output=True, text=True)

    assert done.returncode == 1
    assert "ModuleNotFoundError" in done.stderr
