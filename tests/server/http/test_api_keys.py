"""The accepted API keys."""

from pathlib import Path

import pytest

from engine_server.contract.cluster.engine_keys import hash_line
from engine_server.server.http.api_keys import ApiKeys, credentials


def test_any_of_the_given_keys_is_accepted() -> None:
    keys = ApiKeys(["one", "", "zwei ü"])
    assert keys.required
    assert keys.accept([b"one"])
    assert keys.accept([b"wrong", "zwei ü".encode()])
    for wrong in ([], [b""], [b"on"], [b"onee"], [b"ONE"]):
        assert not keys.accept(wrong)


def test_no_key_is_required_without_keys() -> None:
    assert not ApiKeys([]).required
    assert not ApiKeys([""]).required


def test_file_has_one_key_per_line_and_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("one\r\n\n  two  \n")
    keys = ApiKeys(["given"], file)
    for key in (b"one", b"two", b"given"):
        assert keys.accept([key])
    assert not keys.accept([b""])
    file.write_text("three")
    keys.reload()
    assert keys.accept([b"three"])
    assert not keys.accept([b"one"])


def test_file_may_have_the_hash_of_a_key_which_is_no_key_itself(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    line = hash_line("one")
    file.write_text(line)
    keys = ApiKeys([], file)
    assert keys.accept([b"one"])
    assert not keys.accept([line.encode()])


def test_line_that_is_no_whole_hash_is_a_key(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("sha256:abc")
    assert ApiKeys([], file).accept([b"sha256:abc"])


def test_empty_file_accepts_no_request(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("\n")
    keys = ApiKeys([], file)
    assert keys.required
    assert not keys.accept([b""])


def test_keys_stay_in_force_while_their_file_is_missing(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    with pytest.raises(ValueError, match="keys can't be read: No such file"):
        ApiKeys([], file)
    file.write_text("one")
    keys = ApiKeys([], file)
    file.unlink()
    with pytest.raises(ValueError, match="can't be read"):
        keys.reload()
    assert keys.accept([b"one"])


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ([(b"authorization", b"Bearer one")], [b"one"]),
        ([(b"authorization", b"bearer  one ")], [b"one"]),
        ([(b"x-api-key", b"one"), (b"authorization", b"BEARER two")], [b"one", b"two"]),
        ([(b"authorization", b"Basic one")], []),
        ([(b"authorization", b"one")], []),
        ([(b"cookie", b"one")], []),
    ],
)
def test_keys_are_taken_from_both_headers(headers: list[tuple[bytes, bytes]], found: list[bytes]) -> None:
    assert list(credentials(headers)) == found
