"""Where a benchmark's result goes: a file of JSON that says how to measure it again."""

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from engine_server.bench import provenance

RESULTS = Path(__file__).parent / "results"


def save(benchmark: str, told: dict[str, Any], output: Path | None = None) -> Path:
    """The file that now holds what was `told`, beside date, command, machine and versions.

    output: its place, if not among the results by the benchmark's name and the time.
    """
    result = {
        "benchmark": benchmark,
        **provenance("python", "-m", f"benchmarks.{benchmark}", *sys.argv[1:]),
        **told,
    }
    path = output or RESULTS / f"{benchmark}-{datetime.now(UTC):%Y%m%d-%H%M%S}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=2) + "\n")
    return path
