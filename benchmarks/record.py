"""Saving of results as JSON, with everything needed to repeat the measurement."""

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from engine_server.bench.provenance import built_with_pgo, provenance

RESULTS = Path(__file__).parent / "results"
WITHOUT_PGO = """\
warning: this Python was configured without --enable-optimizations (PGO), unlike the image's. Python code takes up to
1.1 of the CPU time, unless the interpreter was optimised by other means, as Debian's is.
"""


def save(benchmark: str, figures: dict[str, Any], output: Path | None = None) -> Path:
    """Write the figures with their provenance, and return the file. Warn about an interpreter without PGO.

    output: the file; default: one among the results, named by the benchmark and the time.
    """
    result = {
        "benchmark": benchmark,
        **provenance("python", "-m", f"benchmarks.{benchmark}", *sys.argv[1:]),
        **figures,
    }
    if not built_with_pgo():
        sys.stderr.write(WITHOUT_PGO)
    path = output or RESULTS / f"{benchmark}-{datetime.now(UTC):%Y%m%d-%H%M%S}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=2) + "\n")
    return path
