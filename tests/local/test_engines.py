"""The programs that `fairlead up` starts."""

import subprocess

import pytest
from llm_local.engines import fairlead
from tiers import tiered

PROGRAMS = ["engine", "fetch", "router"]


@pytest.mark.usefixtures("foreign_folder")
@pytest.mark.parametrize("program", tiered(PROGRAMS, "engine", more=PROGRAMS))
def test_programs_import_nothing_from_the_working_folder(program: str) -> None:
    done = subprocess.run(fairlead([program, "--help"]), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
