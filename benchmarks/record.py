"""Saving of results as JSON, with everything needed to repeat the measurement."""

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from engine_server.bench.provenance import provenance

RESULTS = Path(__file__).parent / "results"


def save(benchmark: str, figures: dict[str, Any], output: Path | None = None) -> Path:
    """Write the figures with date, command, machine and versions, and return the file.

    output: the file; default: one among the results, named by the benchmark and the time.
    """
    result = {
        "benchmark": benchmark,
        **provenance("python", "-m", f"benchmarks.{benchmark}", *sys.argv[1:]),
        **figures,
    }
    path = output or RESULTS / f"{benchmark}-{datetime.now(UTC):%Y%m%d-%H%M%S}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=2) + "\n")
    return path
