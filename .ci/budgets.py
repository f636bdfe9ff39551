"""Prints the lines of each part beside its budget; over one means a redesign, not a squeeze."""

import subprocess
import sys
from pathlib import Path

BUDGETS = {
    "engine_server/engine": 5000,
    "engine_server/modeling": 2500,
    "engine_server/modeling/kernels": 1500,
    "engine_server/modeling/native": 1500,
    "engine_server/telemetry": 800,
    "engine_server/server": 3500,
    "engine_server/router": 2000,
    "operator/llm_operator": 2500,
}
FILE_BUDGET = 500
KINDS = {".py", ".cpp", ".h"}


def lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def main() -> int:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],  # noqa: S607
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    files = {
        path: lines(path)
        for path in map(Path, listed.splitlines())
        if path.suffix in KINDS and path.is_file()
    }
    over = [
        f"{path} has {count} lines of {FILE_BUDGET}" for path, count in files.items() if count > FILE_BUDGET
    ]
    for part, budget in BUDGETS.items():
        inner = [
            other for other in BUDGETS if other.startswith(f"{part}/")
        ]  # which have budgets of their own
        count = sum(
            count
            for path, count in files.items()
            if path.is_relative_to(part) and not any(map(path.is_relative_to, inner))
        )
        print(f"{part:31}{count:6} of {budget} lines")
        if count > budget:
            over.append(f"{part} has {count} lines of {budget}")
    for complaint in over:
        print(f"over budget: {complaint}", file=sys.stderr)
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
