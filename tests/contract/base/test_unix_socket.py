"""Addresses of Unix sockets."""

import socket
from pathlib import Path

import pytest

from engine_server.contract.base.unix_socket import MAX_PATH_BYTES, address_of, path_of


def test_an_address_has_its_path():
    assert path_of(address_of("/run/a b/ä.sock")) == "/run/a b/ä.sock"


@pytest.mark.parametrize("address", ["unix:", "unix:a.sock", "unix:///a\0b", "unix:/a\n", "http://h:1", "/a"])
def test_refuses_what_is_no_absolute_path_in_printable_characters(address):
    with pytest.raises(ValueError, match="a Unix socket is unix:/PATH"):
        path_of(address)


def test_refuses_a_path_that_is_longer_than_a_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    longest = "/" + "ä" * ((MAX_PATH_BYTES - 1) // 2)

    assert address_of(longest.ljust(MAX_PATH_BYTES - longest.count("ä"), "x"))
    with pytest.raises(ValueError, match=f"has at most {MAX_PATH_BYTES} bytes, not {MAX_PATH_BYTES + 1}: /"):
        address_of("/" + "x" * MAX_PATH_BYTES)


def test_the_longest_path_is_that_of_the_kernel(tmp_path: Path):
    def bind(size: int) -> None:
        name = "x" * (size - len(f"{tmp_path}/"))
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"{tmp_path}/{name}")

    bind(MAX_PATH_BYTES)
    with pytest.raises(OSError, match="too long"):
        bind(MAX_PATH_BYTES + 1)
