"""Header fields: those that are forwarded, and those that end at the router."""

from hypothesis import given
from hypothesis import strategies as st

from engine_server.router.http.wire import JOINED_BYTES, NOT_FORWARDED, OWN_PREFIXES, Fields, Request

names = st.sampled_from([b"X-One", b"x-one", b"X-Two", b"Accept", b"TE", b"Content-Length", b"Fairlead-New"])
fields = st.lists(st.tuples(names, st.sampled_from([b"", b"a", b"b: c"])), max_size=8)


@given(fields, st.lists(st.sampled_from([b"x-one", b"X-Two", b"close", b"keep-alive"]), max_size=3))
def test_forwards_in_order_what_is_neither_hop_by_hop_nor_named_by_connection(received, named):
    head = Fields()
    for name, value in received:
        head.add(name, value)
    if named:
        head.add(b"Connection", b", ".join(named))

    forwarded = head.take_forwarded()

    dropped = NOT_FORWARDED | {name.lower() for name in named}
    kept = [(name, value) for name, value in received if name.lower() not in dropped]
    kept = [(name, value) for name, value in kept if not name.lower().startswith(OWN_PREFIXES)]
    assert forwarded == b"".join(b"%b: %b\r\n" % field for field in kept)


def test_fields_of_one_head_are_not_in_the_next():
    head = Fields()
    head.add(b"X-First", b"1")
    head.add(b"Host", b"h")
    head.take_forwarded()
    head.add(b"X-Trailer", b"1")

    head.clear()
    head.add(b"X-Second", b"2")

    assert head.take_forwarded() == b"X-Second: 2\r\n"
    assert head.read == {}


def test_a_large_body_is_sent_without_a_copy():
    small, large = (
        Request(
            b"POST",
            b"/v1/completions",
            b"Host: h\r\n",
            {},
            bytearray(size),
            http11=True,
            last=False,
            id=b"id",
        )
        for size in (JOINED_BYTES, JOINED_BYTES + 1)
    )
    head = b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nX-Request-Id: id\r\nContent-Length: %d\r\n\r\n"
    assert small.message() == [head % JOINED_BYTES + small.body]
    first, second = large.message()
    assert first == head % (JOINED_BYTES + 1) and second is large.body
