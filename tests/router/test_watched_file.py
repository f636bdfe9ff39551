"""A file that is read again when it changes."""

import os

import pytest

from engine_server.router.watched_file import WatchedFile


class Content:
    def __init__(self) -> None:
        self.applied: list[bytes] = []

    def apply(self, content: bytes) -> None:
        if content.startswith(b"bad"):
            raise ValueError("it is bad")
        self.applied.append(content)


def test_applies_each_change_once(tmp_path):
    path, content = tmp_path / "f", Content()
    file = WatchedFile(path)
    for text in (b"a", b"b"):
        path.write_bytes(text)
        file.refresh(content.apply)
        file.refresh(content.apply)
    assert content.applied == [b"a", b"b"]


def test_the_first_content_is_not_applied_again(tmp_path):
    path, content = tmp_path / "f", Content()
    path.write_bytes(b"a")
    file = WatchedFile(path)
    file.load(content.apply)
    file.refresh(content.apply)
    assert content.applied == [b"a"]


def test_notices_a_replaced_file_of_the_same_size_and_age(tmp_path):
    """As in a mounted Secret, where a symbolic link is moved to another folder."""
    content = Content()
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "f").write_text(folder)
        os.utime(tmp_path / folder / "f", (1000, 1000))
    (tmp_path / "data").symlink_to("one")
    file = WatchedFile(tmp_path / "data" / "f")
    file.refresh(content.apply)
    (tmp_path / "new").symlink_to("two")
    (tmp_path / "new").rename(tmp_path / "data")
    file.refresh(content.apply)
    assert content.applied == [b"one", b"two"]


def test_logs_an_invalid_or_missing_file_once_and_recovers(tmp_path, caplog):
    path, content = tmp_path / "f", Content()
    file = WatchedFile(path)
    path.write_bytes(b"a")
    file.refresh(content.apply)
    path.write_bytes(b"bad fl-secret")
    for _ in range(3):
        file.refresh(content.apply)
    path.unlink()
    for _ in range(3):
        file.refresh(content.apply)
    assert [record.getMessage().rpartition(": ")[2] for record in caplog.records] == [
        "it is bad",
        "No such file or directory",
    ]
    assert "secret" not in caplog.text
    path.write_bytes(b"b")
    file.refresh(content.apply)
    assert content.applied == [b"a", b"b"]


@pytest.mark.parametrize(("text", "reason"), [(None, "No such file"), (b"bad", "it is bad")])
def test_the_first_content_must_be_valid(tmp_path, text, reason):
    path = tmp_path / "f"
    if text is not None:
        path.write_bytes(text)
    with pytest.raises(ValueError, match=f"{path}: {reason}"):
        WatchedFile(path).load(Content().apply)
