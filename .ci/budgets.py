"""Prints the size of each folder, and fails on a file of more than 500 lines."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

LONGEST_FILE = 500
SOURCES = ("engine_server", "operator")
SUFFIXES = {".py", ".cpp", ".h"}


def count_lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def main() -> int:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],  # noqa: S607
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    paths = [path for path in map(Path, listed.splitlines()) if path.suffix in SUFFIXES and path.is_file()]
    sizes = {path: count_lines(path) for path in paths}
    folders: Counter[Path] = Counter()
    for path, size in sizes.items():
        if path.parts[0] in SOURCES:
            folders[path.parent] += size
    for folder, size in sorted(folders.items()):
        print(f"{folder!s:44}{size:6} lines")
    too_long = {path: size for path, size in sizes.items() if size > LONGEST_FILE}
    for path, size in too_long.items():
        print(f"{path} has {size} lines; a file has at most {LONGEST_FILE}", file=sys.stderr)
    return 1 if too_long else 0


if __name__ == "__main__":
    sys.exit(main())
