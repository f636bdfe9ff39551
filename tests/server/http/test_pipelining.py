"""Requests that are sent before earlier ones are answered, and the places for connections."""

import contextlib

import pytest
from http_service import GET, POST, Service, read_answer, serving
from waiting import until

from engine_server.server.http.protocol import Input
from engine_server.shared.pipelining import MAX_WAITING, SLICE_BYTES
from engine_server.shared.shares import Shares


def test_pipelined_requests_are_answered_in_order(service: Service) -> None:
    with service.connect() as connection:
        connection.sendall(b"".join(b"GET /%d HTTP/1.1\r\n\r\n" % number for number in range(100)))
        received = b""
        while received.count(b'"path"') < 100:
            received += connection.recv(1 << 16)
        places = [received.index(b'"path": "/%d"' % number) for number in range(100)]
        assert places == sorted(places)


def test_few_of_many_pipelined_requests_are_parsed_before_earlier_ones_are_answered() -> None:
    shares = Shares(1 << 20)
    count, request = 5_000, b"GET /echo HTTP/1.1\r\n\r\n"
    with serving(input_shares=shares) as service, service.connect() as connection:
        connection.sendall(b"POST /echo HTTP/1.1\r\nContent-Length: 1\r\n\r\n")
        until(lambda: service.app.running)
        client = service.only_connection()
        # The first request is complete, and answered, only with the first of these bytes.
        connection.sendall(b"x" + request * count)
        received, most, held = b"", 0, 0
        while received.count(b'"path"') < count + 1:
            most, held = max(most, len(client.pipeline)), max(held, shares.used)
            received += connection.recv(1 << 12)
        assert most < MAX_WAITING + SLICE_BYTES / len(request) + 1
        assert 0 < held <= len(request) * count
        assert shares.used == 0


def test_pipelined_requests_are_refused_where_memory_is_short() -> None:
    with serving(input_shares=Shares(1000)) as service, service.connect() as connection:
        connection.sendall(b"GET /stream HTTP/1.1\r\n\r\n" + GET * 2000)
        client = service.only_connection()
        until(lambda: client._input is Input.DISCARDED)
        assert not client.pipeline


def test_pipelined_head_is_not_late_while_an_earlier_request_is_answered() -> None:
    with serving(head_seconds=0.1) as service, service.connect() as connection:
        connection.sendall(b"GET /held HTTP/1.1\r\n\r\n" + GET * 600)
        client = service.only_connection()
        timer = until(lambda: client._input is Input.HEAD and client._timer)
        until(lambda: client._timer is not timer)
        service.app.release.set()
        received = b""
        while received.count(b'"path"') < 601:
            piece = connection.recv(1 << 16)
            assert piece
            received += piece


def test_disconnect_ends_a_request_before_which_others_were_queued(service: Service) -> None:
    with service.connect() as connection:
        connection.sendall(b"GET /stream HTTP/1.1\r\n\r\n")
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
        connection.sendall(GET)
        until(lambda: next(iter(service.server.server_state.connections)).pipeline)
    for other in list(service.server.server_state.connections):
        other.transport.abort()
    until(lambda: service.app.running == 0)


def test_idle_connections_are_closed() -> None:
    with serving(keep_alive=0.2) as service, service.connect() as silent, service.connect() as blank:
        blank.sendall(b"\r\n")
        assert silent.recv(1) == b""
        assert blank.recv(1) == b""


def test_longest_idle_connection_is_closed_for_a_new_one() -> None:
    with serving(connections=2) as service, service.connect() as longest, service.connect() as latest:
        for client in (longest, latest, longest, latest):
            client.sendall(GET)
            assert read_answer(client)[0] == 200
        with service.connect() as client:
            client.sendall(GET)
            assert read_answer(client)[0] == 200
            assert longest.recv(1) == b""
            latest.sendall(GET)
            assert read_answer(latest)[0] == 200


def test_callers_that_come_at_once_are_all_answered_where_idle_connections_hold_all_places() -> None:
    with serving(connections=6) as service, contextlib.ExitStack() as opened:
        for _ in range(6):
            idle = opened.enter_context(service.connect())
            idle.sendall(GET)
            assert read_answer(idle)[0] == 200
        newcomers = [opened.enter_context(service.connect()) for _ in range(6)]
        for client in newcomers:
            client.sendall(GET)
        assert [read_answer(client)[0] for client in newcomers] == [200] * 6


@pytest.mark.parametrize("sent", [b"GET /echo HTTP/1.1\r\n", POST + b"Content-Length: 9\r\n\r\n{"])
def test_unfinished_requests_of_one_address_keep_nobody_out(sent: bytes) -> None:
    hours = dict.fromkeys(("head_seconds", "piece_seconds", "body_seconds"), 3600.0)
    with serving(connections=3, **hours) as service, contextlib.ExitStack() as opened:
        for _ in range(3):
            opened.enter_context(service.connect()).sendall(sent)
        until(lambda: service.num_connections == 3)
        with service.connect() as client:
            client.sendall(GET)
            assert read_answer(client)[0] == 200


def test_new_connection_waits_while_all_others_are_busy() -> None:
    with serving(connections=2) as service, service.connect() as first, service.connect() as second:
        for client in (first, second):
            client.sendall(b"GET /held HTTP/1.1\r\n\r\n")
        until(lambda: service.app.running == 2)
        with service.connect() as third:
            third.sendall(GET)
            until(lambda: service.server._places._on_free is not None)
            assert service.num_connections == 2
            service.app.release.set()
            assert read_answer(third)[0] == 200
