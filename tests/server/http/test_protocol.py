"""Limits of a connection, by raw sockets against a small application behind the server's own protocol."""

import contextlib
import json
import random
import select
import socket
import threading
from collections.abc import Callable, Iterator
from time import monotonic

import psutil
import pytest
from http_service import GET, LARGE, POST, Service, assert_refused, fields, read_answer, serving
from tiers import tiered
from waiting import PATIENCE, until

from engine_server.contract.base.open_files import raise_open_files_limit
from engine_server.server.http import answer_transport


@pytest.mark.parametrize(
    "head",
    [
        POST + fields(129) + b"\r\n",
        POST + fields(70, 1000) + b"\r\n",
        b"GET /" + b"a" * (65 << 10) + b" HTTP/1.1\r\n\r\n",
        POST + b"X: " + b"a" * (1 << 20),
        b"GET /" + b"a" * (1 << 20),
        POST + fields(2, 512 << 10),
    ],
    ids=["fields", "bytes", "path", "unfinished field", "unfinished path", "large fields"],
)
def test_too_large_head_is_refused(service: Service, head: bytes) -> None:
    with service.connect() as connection:
        connection.sendall(head)
        assert_refused(connection, 431, "head_too_large")


def test_head_within_the_limits_is_accepted(service: Service) -> None:
    with service.connect() as connection:
        connection.sendall(b"GET /echo HTTP/1.1\r\n" + fields(128, 480) + b"\r\n")
        assert read_answer(connection)[0] == 200


def test_endless_head_takes_no_memory(service: Service) -> None:
    process = psutil.Process()
    before = process.memory_info().rss
    with service.connect() as connection, contextlib.suppress(OSError):
        connection.sendall(b"GET / HTTP/1.1\r\nX: ")
        for _ in range(128):
            connection.sendall(b"a" * (1 << 20))
    assert process.memory_info().rss - before < 32 << 20


def test_endless_trailer_is_refused(service: Service) -> None:
    with service.connect() as connection:
        connection.sendall(POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX: " + b"a" * (1 << 20))
        assert_refused(connection, 431, "head_too_large")
    until(lambda: service.app.running == 0)


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)),
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"{" * (1 << 20),
        b"GET /\xff\xfe HTTP/1.1\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        POST + b"Content-Length: x\r\n\r\n",
        POST + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
    ids=["tls", "ssh", "http2", "brackets", "path", "version", "length", "two lengths"],
)
def test_input_that_is_not_http_gets_an_error_in_openai_shape(service: Service, data: bytes) -> None:
    with service.connect() as connection:
        connection.sendall(data)
        error = assert_refused(connection, 400, "malformed_request")
        assert len(error["message"]) < 300


def test_connect_is_refused(service: Service) -> None:
    with service.connect() as connection:
        connection.sendall(b"CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n")
        assert_refused(connection, 405, "method_not_allowed")


def test_malformed_body_ends_its_request_with_an_error(service: Service) -> None:
    with service.connect() as connection:
        connection.sendall(POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\nxyz\r\n")
        assert_refused(connection, 400, "malformed_request")
    until(lambda: service.app.running == 0)


def test_malformed_input_after_a_request_leaves_its_answer_intact(service: Service) -> None:
    with service.connect() as connection:
        connection.sendall(GET + b"garbage\r\n\r\n")
        assert read_answer(connection)[0] == 200
        assert connection.recv(1) == b""


def test_upgrade_offered_by_a_java_client_is_declined_and_its_body_is_kept(service: Service) -> None:
    head = (
        b"POST /echo HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\nContent-Length: %d\r\n"
        b"Host: localhost:8000\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\n"
        b"Upgrade: h2c\r\nUser-Agent: Java-http-client/21.0.2\r\nContent-Type: application/json\r\n\r\n"
    )
    body = b'{"model": "smollm2"}'
    with service.connect() as connection:
        for pieces in (
            [head % len(body) + body],
            [head % len(body), body],
            [head % len(body), b"{", body[1:]],
        ):
            for piece in pieces:
                connection.sendall(piece)
            status, _, answer = read_answer(connection)
            assert (status, json.loads(answer)["body"]) == (200, body.decode())
        connection.sendall(2 * (head % len(body) + body))
        answers = b""
        while answers.count(b'\\"smollm2\\"') < 2:
            answers += connection.recv(1 << 16)


@contextlib.contextmanager
def trickling(connection: socket.socket, piece: bytes) -> Iterator[None]:
    """Send a small piece again and again during the context."""
    ended = threading.Event()

    def trickle() -> None:
        with contextlib.suppress(OSError):
            while not ended.wait(0.02):
                connection.sendall(piece)

    thread = threading.Thread(target=trickle)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_head_that_does_not_arrive_in_time_is_refused() -> None:
    with serving(head_seconds=0.2) as service, service.connect() as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost")
        assert_refused(connection, 408, "slow_request")


def test_header_fields_that_trickle_do_not_extend_the_time_for_a_head() -> None:
    with serving(head_seconds=0.5) as service, service.connect() as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n")
        with trickling(connection, b"X: a\r\n"):
            assert_refused(connection, 408, "slow_request")


def test_body_that_pauses_too_long_is_refused() -> None:
    with serving(piece_seconds=0.2) as service, service.connect() as connection:
        connection.sendall(POST + b"Content-Length: 10\r\n\r\n{")
        assert_refused(connection, 408, "slow_request")
        until(lambda: service.app.running == 0)


def test_body_whose_pauses_are_short_may_take_longer_in_all() -> None:
    with serving(piece_seconds=1) as service, service.connect() as connection:
        connection.sendall(POST + b"Content-Length: 11\r\n\r\n")
        loop = service.only_connection().loop

        def send(more: int) -> None:
            """Run in the server's loop, so that no stall delays the client alone."""
            connection.sendall(b"a")
            if more:
                loop.call_later(0.1, send, more - 1)

        loop.call_soon_threadsafe(send, 10)
        assert json.loads(read_answer(connection)[2])["body"] == "a" * 11


@pytest.mark.parametrize(
    ("before", "rest", "end_of_time"),
    [
        (GET[:-2], GET[-2:], "_time_out_head"),
        (POST + b"Content-Length: 2\r\n\r\n{", b"}", "_time_out_body"),
        (b"", GET, "timeout_keep_alive_handler"),
    ],
    ids=["head", "body", "idle"],
)
def test_request_whose_rest_lies_in_the_socket_is_not_late(
    before: bytes, rest: bytes, end_of_time: str
) -> None:
    """The loop has stood still until the time was over."""
    with serving() as service, service.connect() as connection:
        connection.sendall(before)
        server = service.only_connection()
        until(lambda: server._timer or not before)

        def stand_still() -> None:
            connection.sendall(rest)
            select.select([server.transport.get_extra_info("socket")], [], [], PATIENCE)
            getattr(server, end_of_time)()

        server.loop.call_soon_threadsafe(stand_still)
        assert read_answer(connection)[0] == 200


def test_pieces_of_a_body_that_trickle_do_not_extend_its_time() -> None:
    with serving(body_seconds=0.5) as service, service.connect() as connection:
        connection.sendall(POST + b"Content-Length: 1000000\r\n\r\n")
        with trickling(connection, b"a"):
            assert_refused(connection, 408, "slow_request")
        until(lambda: service.app.running == 0)


def test_request_in_flight_takes_longer_than_the_times_for_head_and_body() -> None:
    with serving(head_seconds=0.05, piece_seconds=0.05) as service, service.connect() as connection:
        connection.sendall(b"GET /stream HTTP/1.1\r\n\r\n")
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
        connection.settimeout(0.5)
        with pytest.raises(TimeoutError):
            while connection.recv(1 << 16):
                pass
        assert service.app.running == 1


def test_client_that_reads_nothing_is_disconnected() -> None:
    with serving(read_seconds=0.4) as service, service.connect() as connection:
        connection.sendall(b"GET /large HTTP/1.1\r\n\r\n")
        until(lambda: service.app.num_started == 1)
        until(lambda: service.num_connections == 0)
        until(lambda: service.app.running == 0)


def test_client_that_reads_nothing_is_disconnected_after_its_last_answer() -> None:
    """The transport waits for pending bytes before it closes, as it does in a drain."""
    with serving(read_seconds=0.4) as service, service.connect() as connection:
        connection.sendall(b"GET /large HTTP/1.0\r\n\r\n")
        until(lambda: service.app.num_started == 1)
        until(lambda: service.num_connections == 0)


def test_client_that_reads_too_slowly_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads all the time, but less than it has to."""
    monkeypatch.setattr(answer_transport, "LEAST_RATE", 1e12)
    with serving(read_seconds=0.2) as service, service.connect() as connection:
        connection.sendall(b"GET /large HTTP/1.1\r\n\r\n")
        connection.setblocking(False)

        def read() -> None:
            with contextlib.suppress(BlockingIOError, ConnectionResetError):
                connection.recv(1_000)

        until(lambda: service.app.num_started == 1)
        until(lambda: (read(), service.num_connections == 0)[1])


@pytest.mark.parametrize("stall", [0.0, 1.0], ids=["steadily", "the loop stands still"])
def test_client_that_reads_slowly_stays_connected(stall: float) -> None:
    with serving(read_seconds=0.5) as service, service.connect() as connection:
        connection.setblocking(False)
        connection.sendall(b"GET /large HTTP/1.1\r\nConnection: close\r\n\r\n")
        loop = service.only_connection().loop
        pieces: list[bytes | None] = []

        def read() -> None:
            """Run in the server's loop, so that no stall delays the client alone."""
            try:
                pieces.append(connection.recv(4 << 20))
            except BlockingIOError:
                pieces.append(None)
            except ConnectionResetError:
                pieces.append(b"")
            if len(pieces) == 3:
                loop.call_later(0.05, stand_still)
            if pieces[-1] != b"":
                loop.call_later(0.1 if len(pieces) < 8 else 0.001, read)  # longer than the limit in all

        def stand_still() -> None:
            end = monotonic() + stall
            until(lambda: monotonic() > end)

        loop.call_soon_threadsafe(read)
        until(lambda: pieces and pieces[-1] == b"")
        assert sum(len(piece) for piece in pieces if piece) > LARGE


def test_answer_to_an_unread_body_arrives_and_the_connection_closes(service: Service) -> None:
    with service.connect() as connection:
        connection.sendall(b"POST /refuse HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % LARGE)
        for _ in range(LARGE >> 20):
            connection.sendall(bytes(1 << 20))
        status, headers, body = read_answer(connection)
        assert (status, headers["connection"], body) == (413, "close", b"too large")
        assert connection.recv(1) == b""


def test_connection_closes_though_the_client_of_a_refused_body_never_ends() -> None:
    with serving(linger_seconds=0.2) as service, service.connect() as connection:
        connection.sendall(b"POST /refuse HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert read_answer(connection)[0] == 413
        until(lambda: service.num_connections == 0)


@pytest.mark.parametrize(
    ("request_bytes", "expected"),
    [
        (b"HEAD /echo HTTP/1.1\r\nHost: a\r\n\r\n", b""),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX-Sum: 5\r\n\r\n", b"abc"),
        (POST + b"Content-Length: 3\r\n\r\nabc", b"abc"),
        (b"\r\n\r\n" + POST + b"Content-Length: 3\r\n\r\nabc", b"abc"),
    ],
    ids=["HEAD", "trailers", "length", "blank lines"],
)
def test_connection_is_kept_for_the_next_request(
    service: Service, request_bytes: bytes, expected: bytes
) -> None:
    with service.connect() as connection:
        for _ in range(2):
            connection.sendall(request_bytes)
            if request_bytes.startswith(b"HEAD"):
                received = b""
                while b"\r\n\r\n" not in received:
                    received += connection.recv(1 << 16)
                assert received.startswith(b"HTTP/1.1 200") and received.endswith(b"\r\n\r\n")
                continue
            assert json.loads(read_answer(connection)[2])["body"].encode() == expected


def test_client_that_expects_100_continue_is_asked_for_its_body(service: Service) -> None:
    with service.connect() as connection:
        connection.sendall(POST + b"Expect: 100-continue\r\nContent-Length: 3\r\n\r\n")
        assert connection.recv(1 << 16) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(b"abc")
        assert json.loads(read_answer(connection)[2])["body"] == "abc"


def test_random_bytes_are_answered_or_closed(service: Service) -> None:
    generator = random.Random(0)
    starts: list[Callable[[], bytes]] = [lambda: b"", lambda: b"GET ", lambda: POST, lambda: GET[:-2]]
    for number in range(200):
        with service.connect() as connection:
            start = starts[number % len(starts)]()
            connection.sendall(start + generator.randbytes(generator.randrange(1, 400)) + b"\r\n\r\n")
            connection.shutdown(socket.SHUT_WR)
            received = b""
            with contextlib.suppress(ConnectionResetError):
                while piece := connection.recv(1 << 16):
                    received += piece
            assert not received or received.startswith(b"HTTP/1.1 ")
    until(lambda: service.num_connections == 0 and service.app.running == 0)


@pytest.mark.parametrize("count", tiered([200, 1000], 200))
def test_many_clients_that_stop_reading_leave_nothing(count: int) -> None:
    raise_open_files_limit()
    process = psutil.Process()
    with serving() as service, service.connect() as connection:  # a first server opens what the process keeps
        connection.sendall(GET)
        assert read_answer(connection)[0] == 200
    service.listener.close()
    descriptors, memory = process.num_fds(), process.memory_info().rss
    with serving(read_seconds=1) as service:
        clients = []
        for _ in range(count):
            client = socket.socket()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(service.listener.getsockname())
            client.sendall(b"GET /long HTTP/1.1\r\n\r\n")
            clients.append(client)
        until(lambda: service.num_connections == 0 and service.app.num_started == count)
        until(lambda: service.app.running == 0)
        assert process.memory_info().rss - memory < count * (300 << 10)
        with service.connect() as connection:
            connection.sendall(GET)
            assert read_answer(connection)[0] == 200
        for client in clients:
            client.close()
    service.listener.close()
    until(lambda: process.num_fds() <= descriptors + 1)
