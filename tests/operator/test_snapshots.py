"""The flags and the metrics of `fairlead operator`, as tests/snapshots.py compares them."""

from pathlib import Path

import pytest
from llm_operator import flags, metrics
from snapshots import assert_unchanged, describe_registry, help_of

SNAPSHOTS = Path(__file__).parent / "snapshots"


def test_flags_are_unchanged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(flags, "OWN_NAMESPACE", tmp_path / "namespace")
    assert_unchanged(SNAPSHOTS / "operator_help.txt", help_of("operator"))


def test_metrics_are_unchanged() -> None:
    assert_unchanged(SNAPSHOTS / "operator_metrics.txt", describe_registry(metrics.REGISTRY))
