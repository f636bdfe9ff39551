"""Parsing of requests: the same requests however their bytes are split, and refusals of all that is ambiguous."""

import itertools
import json
from typing import Any

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_server.router.http.limits import Limits
from engine_server.router.http.receiving import WAITING_HEADS_BYTES, Refusal, RequestReader
from engine_server.router.http.wire import Request
from engine_server.shared.pipelining import MAX_WAITING, SLICE_BYTES

HEAD = b"POST /v1/completions HTTP/1.1\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


def receive(*pieces: bytes, limits: Limits | None = None) -> list[Request | Refusal]:
    """Return what a connection receives in these pieces."""
    reader = RequestReader(limits or Limits(), lambda: None, lambda fields: None)
    for piece in pieces:
        if not reader.refused:
            (reader.feed_more if reader.receiving else reader.feed)(piece)
    return list(reader.received)


def refused(*pieces: bytes, limits: Limits | None = None) -> tuple[int, str]:
    """Return status and message of the refusal that is the only result of these pieces."""
    (refusal,) = receive(*pieces, limits=limits)
    assert isinstance(refusal, Refusal)
    return refusal.error.status, str(refusal.error)


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges) if start < end]


tokens = st.text("abcdefghijklmnopqrstuvwxyz-", min_size=1, max_size=12).map(
    lambda name: f"accept-{name}".encode()
)
values = st.binary(max_size=40).map(lambda value: bytes(b for b in value if b > 32 and b != 127))
requests = st.lists(
    st.tuples(
        st.lists(st.tuples(tokens, values), max_size=6),
        st.lists(st.binary(min_size=1, max_size=60), max_size=5),
        st.booleans(),
    ),
    min_size=1,
    max_size=4,
)


def encode(fields: list[tuple[bytes, bytes]], pieces: list[bytes], chunked: bool) -> bytes:
    """Return a request as h11 writes it."""
    connection = h11.Connection(h11.CLIENT)
    framing = (
        (b"transfer-encoding", b"chunked") if chunked else (b"content-length", b"%d" % sum(map(len, pieces)))
    )
    request: Any = h11.Request(
        method=b"POST", target=b"/v1/completions?a=b", headers=[(b"host", b"x"), *fields, framing]
    )
    parts = [connection.send(request)]
    parts += [connection.send(h11.Data(data=piece)) for piece in pieces]
    parts.append(connection.send(h11.EndOfMessage()))
    return b"".join(part or b"" for part in parts)


@given(requests, st.lists(st.integers(0, 10_000), max_size=30))
def test_requests_of_h11_are_the_same_however_their_bytes_are_split(sent, cuts):
    received = receive(*split(b"".join(encode(*request) for request in sent), cuts))
    assert len(received) == len(sent)
    for request, (fields, pieces, _) in zip(received, sent, strict=True):
        assert isinstance(request, Request)
        assert (request.method, request.target, request.body) == (
            b"POST",
            b"/v1/completions?a=b",
            b"".join(pieces),
        )
        assert request.lines == b"".join(b"%b: %b\r\n" % field for field in [(b"host", b"x"), *fields])


@given(requests, st.lists(st.integers(0, 10_000), max_size=30), st.data())
def test_invalid_bytes_give_the_same_result_however_they_are_split(sent, cuts, data):
    """Each request before the invalid byte is received, and nothing after it."""
    whole = bytearray(b"".join(encode(*request) for request in sent))
    position = data.draw(st.integers(0, len(whole) - 1))
    whole[position] = data.draw(st.sampled_from(b"\x00\r\n :\x7f\xff"))
    at_once = receive(bytes(whole))
    in_pieces = receive(*split(bytes(whole), cuts))
    assert summary(at_once) == summary(in_pieces)
    assert sum(isinstance(item, Refusal) for item in at_once) <= 1


def summary(received: list[Request | Refusal]) -> list[Any]:
    return [
        item.error.status if isinstance(item, Refusal) else (item.target, item.lines, bytes(item.body))
        for item in received
    ]


@pytest.mark.parametrize(
    "said",
    [
        HEAD + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
        HEAD + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        HEAD + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
        HEAD + b"Content-Length: 3, 3\r\n\r\nabc",
        HEAD + b"Content-Length: +3\r\n\r\nabc",
        HEAD + b"Content-Length: -3\r\n\r\nabc",
        HEAD + b"Content-Length: 0x3\r\n\r\nabc",
        HEAD + b"Content-Length: 3 4\r\n\r\nabc",
        HEAD + b"Content-Length: 99999999999999999999999\r\n\r\nabc",
        HEAD + b"Content-Length : 3\r\n\r\nabc",
        HEAD + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: identity\r\n\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
        HEAD + b"X: a\r\n b\r\nContent-Length: 3\r\n\r\nabc",
        HEAD + b"X: a\rb\r\nContent-Length: 3\r\n\r\nabc",
        HEAD + b"X: a\x00b\r\nContent-Length: 3\r\n\r\nabc",
        HEAD + b"X y: a\r\nContent-Length: 3\r\n\r\nabc",
        HEAD + b"Host: a\r\nHost: b\r\nContent-Length: 3\r\n\r\nabc",
        b"POST /v1/completions HTTP/1.1\nContent-Length: 3\n\nabc",
        HEAD + b"Content-Length: 3\nX: y\r\n\r\nabc",
        HEAD + b"Content-Length: 3\r\n\nabc",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"post /v1/completions HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"CONNECT a:1 HTTP/1.1\r\n\r\n",
        CHUNKED + b"zz\r\n",
        CHUNKED + b"0x3\r\nabc\r\n0\r\n\r\n",
        CHUNKED + b"+3\r\nabc\r\n0\r\n\r\n",
        CHUNKED + b" 3\r\nabc\r\n0\r\n\r\n",
        CHUNKED + b"3 \r\nabc\r\n0\r\n\r\n",
        CHUNKED + b"3\nabc\n0\n\n",
        CHUNKED + b"3\r\nabcd\r\n0\r\n\r\n",
        CHUNKED + b"fffffffffffffffff\r\nabc\r\n0\r\n\r\n",
        CHUNKED + b"3;\nabc\r\n0\r\n\r\n",
    ],
)
def test_refuses_ambiguous_and_invalid_framing_as_malformed(said):
    assert refused(said)[0] == 400
    assert refused(*(said[i : i + 1] for i in range(len(said))))[0] == 400


def test_fields_between_router_and_engines_are_not_forwarded():
    names = (b"Fairlead-Resume", b"fairlead-report-tokens", b"FAIRLEAD-FUTURE", b"Fairlead-", b"X-Fairlead")
    lines = b"".join(b"%b: 1\r\n" % name for name in names)
    (request,) = receive(HEAD + b"Host: x\r\n" + lines + b"\r\n")
    assert request.lines == b"Host: x\r\n"


def test_trailers_change_no_field():
    (request,) = receive(
        HEAD
        + b"Authorization: one\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n"
        + b"Authorization: two\r\nX-Request-Id: three\r\nFairlead-Resume: 1\r\n\r\n"
    )
    assert request.fields[b"authorization"] == b"one"
    assert b"x-request-id" not in request.fields
    assert request.lines == b"Host: localhost\r\n"


def test_every_field_that_a_repeated_connection_names_is_dropped():
    (request,) = receive(
        HEAD + b"Connection: accept\r\nConnection: b3\r\nAccept: 1\r\nB3: 2\r\nBaggage: 3\r\n\r\n"
    )
    assert request.lines == b"Baggage: 3\r\nHost: localhost\r\n"


def test_refuses_a_target_over_the_limit():
    whole = b"POST /" + b"a" * 99 + b" HTTP/1.1\r\n\r\n"
    assert isinstance(receive(whole, limits=Limits(target=100))[0], Request)
    for pieces in ([whole.replace(b"a ", b"aa ")], split(whole.replace(b"a ", b"aa "), [20, 50, 80])):
        status, message = refused(*pieces, limits=Limits(target=100))
        assert status == 414 and "100 bytes" in message


@pytest.mark.parametrize("name", [b"Accept-%d", b"X-%d"], ids=["forwarded", "not forwarded"])
def test_refuses_a_head_with_too_many_fields(name):
    def head(count: int) -> bytes:
        return HEAD + b"".join((name + b": y\r\n") % number for number in range(count)) + b"\r\n"

    assert isinstance(receive(head(128))[0], Request)
    status, message = refused(head(129))
    assert status == 431 and "128 header fields" in message


PIECE = b"x" * 60_000


@pytest.mark.parametrize(
    "endless",
    [
        b"3\r\nabc\r\n0\r\nX: ",
        b"3\r\nabc\r\n0\r\nX: y\r\nX",
        b"3\r\nabc\r\n3;",
        b"3\r\nabc\r\n" + b"0" * 15 + b"3;x=",
    ],
    ids=["trailer value", "trailer name", "extension name", "extension value"],
)
def test_refuses_endless_trailers_and_chunk_extensions(endless):
    status, message = refused(CHUNKED, endless, PIECE, PIECE)
    assert status == 431 and "trailers and chunk extensions" in message


def test_refuses_many_chunks_with_large_extensions():
    chunk = b"1;" + b"x" * 30_000 + b"\r\ny\r\n"
    assert refused(CHUNKED, chunk, chunk, chunk)[0] == 431


def test_refuses_a_large_trailer_after_a_large_body():
    body = b"%x\r\n%b\r\n" % (len(PIECE), PIECE)
    assert refused(CHUNKED, *[body] * 20, b"0\r\nX: ", PIECE, PIECE)[0] == 431


def test_accepts_a_large_body_in_the_smallest_chunks():
    body = b"1\r\nx\r\n" * 10_000
    (request,) = receive(CHUNKED, *[body] * 10, b"0\r\nX: y\r\n\r\n")
    assert isinstance(request, Request) and len(request.body) == 100_000


def test_reads_pipelined_offers_of_http2_one_after_the_other():
    offer = HEAD + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMA\r\n"
    bodies = [json.dumps({"n": n}).encode() for n in range(2_000)]
    sent = b"".join(offer + b"Content-Length: %d\r\n\r\n%b" % (len(body), body) for body in bodies)
    received = receive(sent)
    assert [item.body for item in received] == bodies
    assert all(item.http11 and not item.last for item in received)


def test_an_offer_of_http2_takes_no_field_from_the_router():
    fields = (
        b"Host: h\r\nAuthorization: Bearer k\r\nX-Api-Key: k\r\nOrigin: http://h\r\nX-Forwarded-For: 1.2.3.4\r\n"
        b"X-Request-Id: 7\r\nContent-Type: application/json\r\nContent-Length: 2\r\n"
    )
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMA\r\n"
    (plain,) = receive(HEAD + fields + b"\r\n{}")
    (offering,) = receive(HEAD + fields + offer + b"\r\n{}")
    offering.arrived = plain.arrived
    assert offering == plain


def test_an_offer_of_http2_keeps_version_and_end_of_the_connection():
    (old,) = receive(b"POST / HTTP/1.0\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 1\r\n\r\nx")
    assert not old.http11 and old.last
    (closing,) = receive(HEAD + b"Connection: close, Upgrade\r\nUpgrade: h2c\r\nContent-Length: 1\r\n\r\nx")
    assert closing.http11 and closing.last


def test_counts_the_bytes_of_bodies_until_they_are_dropped():
    reader = RequestReader(Limits(), lambda: None, lambda fields: None)
    reader.feed(HEAD + b"Content-Length: 3\r\n\r\nabc" + HEAD + b"Content-Length: 5\r\n\r\nde")
    assert reader.held == 5
    reader.feed_more(b"f\x00g" + b"nonsense\r\n")
    assert reader.refused and reader.held == 8 + WAITING_HEADS_BYTES
    reader.drop_received()
    assert reader.held == 0


SHORTEST = b"GET / HTTP/1.1\r\n\r\n"


def in_slices(data: bytes) -> tuple[list[Request | Refusal], int]:
    """Return what arrives at once and is parsed in slices as requests are taken, and how many waited at most."""
    reader = RequestReader(Limits(), lambda: None, lambda fields: None)
    reader.feed_slices(data)
    taken, most = [], 0
    while reader.received:
        most = max(most, len(reader.received))
        taken.append(reader.take())
    assert (
        reader.held == sum(len(item.body) for item in taken if isinstance(item, Request)) or reader.receiving
    )
    return taken, most


def test_few_of_many_pipelined_requests_are_parsed_before_they_are_taken():
    taken, most = in_slices(SHORTEST * 14_000)
    assert len(taken) == 14_000
    assert most < MAX_WAITING + SLICE_BYTES / len(SHORTEST) + 1


@given(st.lists(requests, min_size=1, max_size=30), st.integers(0, 3))
def test_requests_are_the_same_if_they_are_parsed_in_slices(sent, repeats):
    data = b"".join(encode(*one) for list_ in sent for one in list_) * 2**repeats
    taken, _ = in_slices(data)
    assert [bytes(one.body) for one in taken] == [bytes(one.body) for one in receive(data)]
    assert [one.lines for one in taken] == [one.lines for one in receive(data)]


def test_a_body_is_parsed_at_once_however_large_it_is():
    body = bytes(30 * SLICE_BYTES)
    (request,), _ = in_slices(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    assert isinstance(request, Request) and request.body == body


def test_requests_before_an_invalid_one_are_parsed_and_none_after_it():
    taken, _ = in_slices(SHORTEST * 1000 + b"nonsense\r\n\r\n" + SHORTEST * 1000)
    assert [type(one) for one in taken] == [Request] * 1000 + [Refusal]


def test_heads_count_while_they_are_incomplete_and_while_they_wait_unparsed():
    reader = RequestReader(Limits(), lambda: None, lambda fields: None)
    reader.feed(b"GET / HTTP/1.1\r\n")
    reader.feed_more(b"X: " + b"x" * 10_000)
    assert reader.held >= 10_000
    reader.feed_more(b"\r\n\r\n")
    assert reader.held == 0
    reader.feed_slices(SHORTEST * 10_000)
    assert reader.held >= len(SHORTEST) * 9_000 + WAITING_HEADS_BYTES
    while reader.received:
        reader.take()
    assert reader.held == 0
