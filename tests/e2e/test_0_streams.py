"""Streams of real engines through a real router, while the engines are killed."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]


def test_no_stream_fails_or_differs_while_engines_are_killed() -> None:
    """Each engine is killed once at least; the benchmark compares every stream with an undisturbed one."""
    command = [sys.executable, "-m", "benchmarks.faults", "--signal=kill", "--streams=40", "--seconds=10"]
    done = subprocess.run(
        [*command, "--faults=2", "--tokens=16"], cwd=ROOT, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stdout + done.stderr
