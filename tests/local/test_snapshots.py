"""The flags of `fairlead up`, as tests/snapshots.py compares them."""

from pathlib import Path

from snapshots import assert_unchanged, help_of


def test_flags_are_unchanged() -> None:
    assert_unchanged(Path(__file__).parent / "snapshots" / "up_help.txt", help_of("up"))
