"""The files of the repository's host: workflows, issue forms, hooks before a commit."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
FORMS = [file for file in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml") if file.name != "config.yml"]
TARGETS = set(re.findall(r"^([a-z0-9-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))


def load(file: Path) -> Any:
    return yaml.safe_load(file.read_text())


def steps(workflow: Path) -> Iterator[dict[str, Any]]:
    for job in load(workflow)["jobs"].values():
        yield from job["steps"]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda file: file.name)
def test_each_step_is_an_action_or_a_command_that_runs_here(workflow: Path) -> None:
    commands = [step["run"] for step in steps(workflow) if "uses" not in step]
    assert commands
    for command in commands:
        name, _, target = command.partition(" ")
        assert (ROOT / name).is_file() if not target else name == "make" and target in TARGETS, command


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda file: file.name)
def test_workflow_has_no_secret_and_writes_only_what_a_job_publishes(workflow: Path) -> None:
    assert "secrets" not in workflow.read_text()
    assert set(load(workflow)["permissions"]) <= {"contents"}
    writes = {
        (name, permission)
        for name, job in load(workflow)["jobs"].items()
        for permission, level in job.get("permissions", {}).items()
        if level == "write"
    }
    assert writes <= {("registry", "packages"), ("pypi", "id-token"), ("page", "contents")}


def test_nothing_is_published_before_all_was_built_and_checked() -> None:
    jobs = load(ROOT / ".github/workflows/release.yml")["jobs"]
    for name in ("registry", "pypi", "page"):
        assert "build" in jobs[name]["needs"]


@pytest.mark.parametrize("form", FORMS, ids=lambda file: file.name)
def test_issue_form_demands_the_version_and_the_machine(form: Path) -> None:
    fields = {field["id"]: field for field in load(form)["body"] if "id" in field}
    assert "`fairlead version --verbose`" in fields["version"]["attributes"]["label"]
    assert fields["version"]["validations"] == {"required": True}


def test_hooks_before_a_commit_run_programs_of_the_environment_and_targets_of_make() -> None:
    [repository] = load(ROOT / ".pre-commit-config.yaml")["repos"]
    for hook in repository["hooks"]:
        program, word = hook["entry"].split()[:2]
        assert program == ".venv/bin/ruff" or (program == "make" and word in TARGETS)
