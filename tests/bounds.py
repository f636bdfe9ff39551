"""Upper bounds of what the tests of a folder start in the default tier: `starts.toml` has a row for each."""

import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from costs import SHARED
from starts import KINDS

FILE = Path(__file__).with_name("starts.toml")


def by_folder(spent: Mapping[str, Counter[str]]) -> dict[str, Counter[str]]:
    """Add up the costs of files by folder of tests/, and of the fixtures that workers share."""
    folders: dict[str, Counter[str]] = {}
    for name, costs in spent.items():
        parts = name.split("/")
        folder = SHARED if name.startswith(SHARED) else parts[1] if len(parts) > 2 else parts[0]
        folders.setdefault(folder, Counter()).update(costs)
    return dict(sorted(folders.items()))


def read_bounds(file: Path = FILE) -> dict[str, dict[str, int]]:
    return tomllib.loads(file.read_text())


def exceeded(folders: Mapping[str, Counter[str]], bounds: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Return a line for each bound that a folder exceeds; what workers share is not bounded."""
    return [
        f"tests of {folder} start {costs[kind]} {kind}, and {FILE.name} allows {bounds.get(folder, {}).get(kind, 0)}:"
        " share what runs already, or raise the row and say why in the commit"
        for folder, costs in folders.items()
        for kind in KINDS
        if folder != SHARED and costs[kind] > bounds.get(folder, {}).get(kind, 0)
    ]
