"""The sockets that the server listens on."""

import socket
from pathlib import Path

import pytest
from sites import answer_ok, running

from engine_server.server.listeners import listen_on_path, listen_on_port
from engine_server.server.serving import Site


def get(path: Path) -> bytes:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        return b"".join(iter(lambda: client.recv(4096), b""))


def test_server_answers_on_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "engine.sock"
    with running(Site(answer_ok, listen_on_path(path))):
        assert get(path).startswith(b"HTTP/1.1 200 OK\r\n")


def test_unix_socket_of_an_ended_server_is_replaced_and_a_live_one_kept(tmp_path: Path) -> None:
    path = tmp_path / "engine.sock"
    listen_on_path(path).close()
    assert path.is_socket()
    with listen_on_path(path), pytest.raises(OSError, match=r"engine\.sock: .*in use"):
        listen_on_path(path)
    file = tmp_path / "file"
    file.write_text("kept")
    with pytest.raises(OSError, match="in use"):
        listen_on_path(file)
    assert file.read_text() == "kept"


def test_port_in_use_is_named() -> None:
    with listen_on_port("127.0.0.1", 0, "http") as listener:
        port = listener.getsockname()[1]
        with pytest.raises(OSError, match=rf"127\.0\.0\.1:{port}: .*in use"):
            listen_on_port("127.0.0.1", port, "http")
