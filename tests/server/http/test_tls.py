"""TLS with files that change, over real connections."""

import http.client
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trustme
from sites import answer_ok, running

from engine_server.server.http.tls import Tls, TlsFiles
from engine_server.server.listeners import listen_on_port
from engine_server.server.serving import Site
from engine_server.shared import listener as listener_module

Connect = Callable[..., http.client.HTTPSConnection]


class Authorities(NamedTuple):
    """Two certificate authorities, before and after a rotation."""

    old: trustme.CA
    new: trustme.CA


@pytest.fixture(scope="module")
def authorities() -> Authorities:
    return Authorities(trustme.CA(), trustme.CA())


def write(files: TlsFiles, authority: trustme.CA) -> None:
    """Write a certificate, its key and the authority of clients, as a rotation does."""
    issued = authority.issue_cert("localhost")
    issued.cert_chain_pems[0].write_to_path(str(files.certificate))
    assert files.key is not None
    issued.private_key_pem.write_to_path(str(files.key))
    if files.authorities is not None:
        authority.cert_pem.write_to_path(str(files.authorities))


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Return a function that opens a connection which trusts one authority."""
    connections: list[http.client.HTTPSConnection] = []

    def connect(port: int, trusted: trustme.CA, client: trustme.CA | None = None) -> Any:
        context = ssl.create_default_context()
        trusted.configure_trust(context)
        if client is not None:
            client.issue_cert("client@example.org").configure_cert(context)
        connection = http.client.HTTPSConnection("localhost", port, context=context, timeout=30)
        connections.append(connection)
        return connection

    yield connect
    for connection in connections:
        connection.close()


def ask(connection: http.client.HTTPSConnection) -> int:
    connection.request("GET", "/")
    response = connection.getresponse()
    response.read()
    return response.status


def test_new_connections_get_the_new_certificate(
    tmp_path: Path, authorities: Authorities, connect: Connect
) -> None:
    files = TlsFiles(tmp_path / "cert.pem", tmp_path / "key.pem")
    write(files, authorities.old)
    tls = Tls(files)
    listener = listen_on_port("127.0.0.1", 0, "https")
    port = listener.getsockname()[1]
    with running(Site(answer_ok, listener, tls)):
        kept = connect(port, authorities.old)
        assert ask(kept) == 200
        write(files, authorities.new)
        assert ask(connect(port, authorities.old)) == 200
        tls.reload()
        assert ask(connect(port, authorities.new)) == 200
        with pytest.raises(ssl.SSLCertVerificationError):
            ask(connect(port, authorities.old))
        assert ask(kept) == 200

        assert files.key is not None
        files.key.write_text("no key")
        with pytest.raises(ValueError, match=r"TLS can't use .*key\.pem"):
            tls.reload()
        assert ask(connect(port, authorities.new)) == 200


def test_client_certificates_are_checked_by_the_current_authorities(
    tmp_path: Path, authorities: Authorities, connect: Connect
) -> None:
    names = ("cert.pem", "key.pem", "clients.pem")
    files = TlsFiles(*(tmp_path / name for name in names), client_certificates=ssl.CERT_REQUIRED)
    write(files, authorities.old)
    tls = Tls(files)
    listener = listen_on_port("127.0.0.1", 0, "https")
    port = listener.getsockname()[1]
    with running(Site(answer_ok, listener, tls)):
        assert ask(connect(port, authorities.old, client=authorities.old)) == 200
        for client in (None, authorities.new):
            with pytest.raises(OSError):  # the handshake's end is read with the answer
                ask(connect(port, authorities.old, client=client))
        write(files, authorities.new)
        tls.reload()
        assert ask(connect(port, authorities.new, client=authorities.new)) == 200
        with pytest.raises(OSError):
            ask(connect(port, authorities.new, client=authorities.old))


def test_a_handshake_has_a_time_limit(
    tmp_path: Path, authorities: Authorities, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener_module, "HANDSHAKE_SECONDS", 0.1)
    files = TlsFiles(tmp_path / "cert.pem", tmp_path / "key.pem")
    write(files, authorities.old)
    listener = listen_on_port("127.0.0.1", 0, "https")
    address = listener.getsockname()
    with (
        running(Site(answer_ok, listener, Tls(files))),
        socket.create_connection(address, timeout=30) as silent,
    ):
        assert silent.recv(1) == b""


def test_missing_file_is_named_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"TLS can't use .*cert\.pem: No such file"):
        Tls(TlsFiles(tmp_path / "cert.pem"))
