"""Files that are read again when they change."""

import logging
from pathlib import Path

import pytest

from engine_server.server.http.file_watch import FileWatch


def test_reload_follows_a_change_and_a_replaced_link(tmp_path: Path) -> None:
    seen: list[str] = []
    old, new, link = tmp_path / "old", tmp_path / "new", tmp_path / "link"
    old.write_text("1")
    new.write_text("2")
    link.symlink_to(old)
    watch = FileWatch([link], lambda: seen.append(link.read_text()))
    watch.check()
    assert seen == []
    # As Kubernetes updates a volume.
    (tmp_path / "next").symlink_to(new)
    (tmp_path / "next").rename(link)
    watch.check()
    watch.check()
    assert seen == ["2"]
    new.write_text("longer")
    watch.check()
    assert seen == ["2", "longer"]


def test_failed_reload_is_logged_once_and_repeated_at_the_next_change(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "keys"
    file.write_text("")
    calls: list[int] = []

    def reload() -> None:
        calls.append(1)
        file.read_text()
        raise ValueError("unusable")

    watch = FileWatch([file], reload)
    file.write_text("more")
    with caplog.at_level(logging.INFO):
        watch.check()
        watch.check()
    assert len(calls) == 1
    assert caplog.text.count("unusable") == 1
    file.write_text("even more")
    watch.check()
    assert len(calls) == 2
