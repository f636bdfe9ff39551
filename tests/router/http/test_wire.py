"""Header fields: those that are forwarded, and those that end at the router."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_server.router.http.forwarded_fields import ANSWER_FIELDS, REQUEST_FIELDS, ForwardedFields
from engine_server.router.http.wire import JOINED_BYTES, Fields, Request

LISTED = ForwardedFields([b"x-one", b"x-t*", b"accept", b"te", b"fairlead-*"])
names = st.sampled_from(
    [b"X-One", b"x-one", b"X-Two", b"X-Other", b"Accept", b"TE", b"Content-Length", b"Fairlead-New"]
)
# What Java's, Python's and browsers' clients and the proxies in front of them send, and what engines may.
ENDING_AT_THE_ROUTER = (
    b"Cookie", b"Proxy-Authorization", b"api-key", b"Authorization", b"X-Api-Key", b"Origin", b"Sec-Fetch-Site",
    b"X-Forwarded-For", b"X-Forwarded-Access-Token", b"X-Auth-Request-User", b"X-Client-Cert", b"Forwarded",
    b"Set-Cookie", b"X-Accel-Redirect", b"X-Sendfile", b"Alt-Svc", b"Strict-Transport-Security", b"Clear-Site-Data",
    b"Refresh", b"Location", b"Access-Control-Allow-Origin", b"Fairlead-Future", b"Transfer-Encoding", b"X-Request-Id",
)  # fmt: skip
fields = st.lists(st.tuples(names, st.sampled_from([b"", b"a", b"b: c"])), max_size=8)


@given(fields, st.lists(st.sampled_from([b"x-one", b"X-Two", b"close", b"keep-alive"]), max_size=3))
def test_forwards_in_order_what_is_listed_and_not_named_by_connection(received, named):
    head = Fields(LISTED)
    for name, value in received:
        head.add(name, value)
    if named:
        head.add(b"Connection", b", ".join(named))

    forwarded = head.take_forwarded()

    passing = {b"x-one", b"x-two", b"accept"} - {name.lower() for name in named}
    passed = [(name, value) for name, value in received if name.lower() in passing]
    assert forwarded == b"".join(b"%b: %b\r\n" % field for field in passed)


@pytest.mark.parametrize("forwarded", [REQUEST_FIELDS, ANSWER_FIELDS])
@pytest.mark.parametrize("name", ENDING_AT_THE_ROUTER)
def test_credentials_and_commands_to_proxies_and_browsers_end_at_the_router(forwarded, name):
    head = Fields(forwarded)
    head.add(name, b"1")
    assert head.take_forwarded() == b""


@pytest.mark.parametrize(
    "name",
    [
        b"Authorization",
        b"Origin",
        b"Sec-Fetch-Mode",
        b"X-Forwarded-For",
        b"Connection",
        b"Fairlead-Resume",
        b"X-Request-Timeout",
    ],
)
def test_some_fields_pass_with_no_list(name):
    assert not REQUEST_FIELDS.with_more([b"*"]).include(name.lower())


@pytest.mark.parametrize(
    "name",
    [b"OpenAI-Api-Key", b"Anthropic-Api-Key", b"anthropic-auth-token", b"X-Team-Secret", b"X-Authorization"],
)
def test_fields_with_secrets_pass_only_by_their_whole_names(name):
    assert not REQUEST_FIELDS.include(name.lower())
    assert not REQUEST_FIELDS.with_more([b"*", b"x-*"]).include(name.lower())
    assert REQUEST_FIELDS.with_more([name.lower()]).include(name.lower())


@pytest.mark.parametrize(
    ("forwarded", "name"),
    [
        (ANSWER_FIELDS, b"x-ratelimit-remaining-tokens"),
        (REQUEST_FIELDS, b"Accept-Language"),
        (REQUEST_FIELDS, b"anthropic-beta"),
        (REQUEST_FIELDS, b"X-Stainless-Arch"),
        (REQUEST_FIELDS, b"X-B3-TraceId"),
        (REQUEST_FIELDS, b"session_id"),
        (ANSWER_FIELDS, b"X-RateLimit-Limit-Requests"),
        (ANSWER_FIELDS, b"retry-after-ms"),
        (ANSWER_FIELDS, b"X-Accel-Buffering"),
        (REQUEST_FIELDS.with_more([b"x-team", b"x-trace-*"]), b"X-Team"),
        (REQUEST_FIELDS.with_more([b"x-team", b"x-trace-*"]), b"X-Trace-Id"),
    ],
)
def test_forwards_what_clients_of_models_use_and_what_is_added(forwarded, name):
    head = Fields(forwarded)
    head.add(name, b"1")
    assert head.take_forwarded() == b"%b: 1\r\n" % name


def test_fields_of_one_head_are_not_in_the_next():
    head = Fields(LISTED)
    head.add(b"X-First", b"1")
    head.add(b"Host", b"h")
    head.take_forwarded()
    head.add(b"X-Trailer", b"1")

    head.clear()
    head.add(b"X-Two", b"2")

    assert head.take_forwarded() == b"X-Two: 2\r\n"
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
    assert first == head % (JOINED_BYTES + 1)
    assert isinstance(second, memoryview) and second.obj is large.body
