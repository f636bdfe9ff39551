"""The commands of README.md and CONTRIBUTING.md, compared with the Makefile's targets."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SECTION = "## Try it on this machine"
FENCED = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
# A command in code, as in `make up` or a line of its own, with or without variables in front.
MAKE = re.compile(r"(?:`|^)(?:[A-Z_]+=\S* )?make ([a-z0-9-]+)", re.MULTILINE)


def targets() -> set[str]:
    """Return the Makefile's documented targets."""
    return set(re.findall(r"^([a-z0-9-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_first_screen_has_two_commands() -> None:
    section = (ROOT / "README.md").read_text().partition(SECTION)[2].partition("\n## ")[0]
    commands = [line for block in FENCED.findall(section) for line in block.splitlines()]
    assert commands == ["make up", "make test"]


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_commands_are_targets_of_the_makefile(name: str) -> None:
    named = set(MAKE.findall((ROOT / name).read_text()))
    assert named
    assert named <= targets()
