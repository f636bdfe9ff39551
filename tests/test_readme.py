"""The first screen of README.md; tests/test_documents.py is for all documents."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
SECTION = "## Try it on this machine"
FENCED = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_first_screen_has_two_commands() -> None:
    section = (ROOT / "README.md").read_text().partition(SECTION)[2].partition("\n## ")[0]
    commands = [line for block in FENCED.findall(section) for line in block.splitlines()]
    assert commands == ["make up", "make test"]
