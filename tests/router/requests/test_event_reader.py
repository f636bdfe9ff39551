"""Division of streams into groups of events, wherever the bytes are split."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_server.contract.wire.continuation import TokenReport
from engine_server.contract.wire.engine_report import ReportedUsage
from engine_server.router.requests.event_reader import MAX_HELD_BYTES, EventReader
from engine_server.router.requests.journal import Journal

KEEP_ALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"
EVENTS = [b'data: {"n": 1}\n\n', b"event: delta\ndata: {}\n\n", 'data: "\u2028 é : \\n\\n"\n\n'.encode()]
DRAINING = b'data: {"error":{"message":"the server is shutting down","code":"draining"}}\n\n'
CREATED = b'event: response.created\ndata: {"type":"response.created"}\n\n'
FAILED = b'data: {"error":{"message":"internal error","code":"internal_error"}}\n\n'


def report(token_ids, events, **more) -> bytes:
    return TokenReport(seed=9, token_ids=token_ids, events=events, **more).encode()


def read(pieces) -> tuple[list[bytes], Journal, EventReader]:
    journal = Journal(fingerprint=b"m")
    reader = EventReader(journal)
    return [reader.read(piece) for piece in pieces], journal, reader


@st.composite
def reported_streams(draw):
    """Pieces as an engine writes them, the events of each group, comments in between, and all reported tokens."""
    written, forwarded, tokens = [], [], []
    for number in range(draw(st.integers(0, 5))):
        events = draw(st.lists(st.sampled_from(EVENTS), max_size=3))
        new = draw(st.lists(st.integers(0, 99_999), max_size=3))
        identity = {} if number else {"id": "a", "created": 4}
        written.append(report(new, len(events), **identity) + b"".join(events))
        if events:
            forwarded.append(b"".join(events))
        tokens += new
        if draw(st.booleans()):
            comment = draw(st.sampled_from([KEEP_ALIVE, b": fairlead note\n"]))
            written.append(comment)
            if comment is KEEP_ALIVE:
                forwarded.append(comment)
    return b"".join(written), forwarded, tokens


@given(reported_streams(), st.data())
def test_client_gets_the_same_whole_groups_wherever_the_stream_is_split(stream, data):
    body, expected, tokens = stream
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=12)))
    pieces = [body[start:end] for start, end in zip([0, *cuts], [*cuts, len(body)], strict=True)]

    forwarded, journal, reader = read(pieces)

    assert b"".join(forwarded) == b"".join(expected)
    boundaries = {len(b"".join(expected[:count])) for count in range(len(expected) + 1)}
    assert {len(b"".join(forwarded[: count + 1])) for count in range(len(forwarded))} <= boundaries
    assert journal.token_ids == tokens
    assert journal.events == sum(part.count(b"\n\n") for part in expected if part is not KEEP_ALIVE)
    assert not reader.error


def test_journal_covers_the_forwarded_events_after_each_byte():
    body = (
        report([1], 2, id="a", created=4) + EVENTS[0] + EVENTS[1] + report([2, 3], 0) + KEEP_ALIVE
        + report([4], 1) + EVENTS[2] + report([], 2, usage=ReportedUsage(1, 4)) + EVENTS[0] + KEEP_ALIVE + DONE
    )  # fmt: skip
    journal = Journal(fingerprint=b"m")
    reader = EventReader(journal)
    sent = b""
    for position in range(len(body)):
        sent += reader.read(body[position : position + 1])
        events = sent.replace(KEEP_ALIVE, b"").count(b"\n\n")
        assert journal.events == events
        assert journal.ended == sent.endswith(DONE)
    assert sent == EVENTS[0] + EVENTS[1] + KEEP_ALIVE + EVENTS[2] + KEEP_ALIVE + EVENTS[0] + DONE
    assert journal.token_ids == [1, 2, 3, 4]
    assert reader.end() == b""


def test_stream_that_ends_before_its_last_report_is_not_complete():
    _, _, reader = read([report([1], 1, id="a", created=4) + EVENTS[0]])
    assert reader.end() is None
    _, _, reader = read([report([1], 2, id="a", created=4) + EVENTS[0]])
    assert reader.end() is None


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("before", [b"", KEEP_ALIVE, report([1], 1, id="a", created=4) + EVENTS[0]])
def test_error_that_another_engine_may_not_have_is_not_forwarded_nor_what_follows(before, split):
    body = before + DRAINING + DONE
    pieces = [body[i : i + 1] for i in range(len(body))] if split else [before, DRAINING, DONE]
    forwarded, journal, reader = read(pieces)
    expected = before.partition(b"\n")[2] if before.startswith(b": fairlead") else before
    assert b"".join(forwarded) == expected
    assert reader.error == "draining" and reader.broken and not journal.ended


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("code", ["draining", "request_failed"])
def test_creation_of_a_response_is_forwarded_with_what_follows_unless_another_engine_may_answer(code, split):
    error = b'event: error\ndata: {"type":"error","code":"%b","message":""}\n\n' % code.encode()
    body = CREATED + error + b"event: response.failed\ndata: {}\n\n"
    pieces = [body[i : i + 1] for i in range(len(body))] if split else [body]
    forwarded, journal, reader = read(pieces)
    if code == "draining":
        assert b"".join(forwarded) == b"" and reader.error == code and not journal.begun
    else:
        assert b"".join(forwarded) == body and not reader.error and reader.end() == b""


def test_creation_of_a_response_without_more_is_forwarded_at_the_end_of_the_body():
    forwarded, journal, reader = read([CREATED])
    assert forwarded == [b""] and not journal.begun
    assert reader.end() == CREATED


def test_other_error_is_forwarded_and_is_the_end_of_the_stream():
    body = report([1], 1, id="a", created=4) + EVENTS[0]
    forwarded, journal, reader = read([body, FAILED, DONE])
    assert forwarded == [EVENTS[0], FAILED, DONE]
    assert journal.ended and not reader.error
    assert reader.end() == b""


def test_retryable_error_after_unreported_events_is_forwarded():
    forwarded, journal, reader = read([EVENTS[0], DRAINING])
    assert forwarded == [EVENTS[0], DRAINING]
    assert not reader.error and not journal.resume()


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
def test_unreported_stream_is_forwarded_by_events_and_its_rest_at_the_end(end):
    event = b"data: a" + end
    forwarded, journal, reader = read(
        [b"data: ", b"a" + end + event + b"da", b"ta: b" + end, event, b"data: tail"]
    )
    assert forwarded == [b"", event + event, b"data: b" + end, event, b""]
    assert reader.end() == b"data: tail"
    assert not journal.resume()


def test_report_within_an_open_group_is_an_error():
    _, _, reader = read([report([1], 2, id="a", created=4) + EVENTS[0]])
    with pytest.raises(ValueError, match="misses 1 event"):
        reader.read(report([2], 1))


@pytest.mark.parametrize("beginning", [b"data: ", b": fairlead ", b": note"])
def test_event_without_an_end_is_oversized_at_the_limit(beginning):
    pieces = [beginning.ljust(65536, b"x")] + [b"x" * 65536] * (MAX_HELD_BYTES // 65536)
    *_, reader = read(pieces[:-1])
    assert not reader.broken
    reader.read(pieces[-1])
    assert reader.broken


def test_group_without_an_end_is_oversized_at_the_limit():
    journal = Journal()
    reader = EventReader(journal)
    reader.read(report([1], 1 << 30, id="a", created=4))
    event = b"data: " + b"x" * 65536 + b"\n\n"
    for _ in range(MAX_HELD_BYTES // len(event)):
        reader.read(event)
    assert not reader.broken
    reader.read(event)
    assert reader.broken and journal.events == 0


@pytest.mark.parametrize("size", [1, 7, 1000, 1 << 20])
def test_empty_events_of_a_stream_without_reports_are_no_tokens(size):
    body = b"data: {}\n\n" + b"\n" * (1 << 20) + b"data: {}\n\n"
    forwarded, journal, _ = read([body[at : at + size] for at in range(0, len(body), size)][: 1 << 17])
    assert b"".join(forwarded) in body
    assert journal.events <= 2


def test_each_event_with_data_of_a_stream_without_reports_is_a_token():
    pieces = [
        DONE,
        *EVENTS,
        b"data: 1\ndata: 2\n\n",
        b"data: 1\n\ndata: 2\n\n",
        b"event: ping\n\n",
        KEEP_ALIVE,
    ]
    assert read(pieces)[1].events == 7
