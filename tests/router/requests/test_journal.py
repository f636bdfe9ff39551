"""The record of a stream, and the body of the request that continues it."""

import msgspec
import pytest

from engine_server.contract.cluster.api import Key
from engine_server.contract.wire.continuation import RepeatedLogprobs, ReportedLogprob, TokenReport
from engine_server.contract.wire.engine_report import ReportedUsage
from engine_server.contract.wire.router_head import RouterHead
from engine_server.router.http.body_budget import BodyBudget
from engine_server.router.http.wire import Request
from engine_server.router.requests import journal as journal_module
from engine_server.router.requests.answer_memory import FREE_BYTES, AnswerMemory
from engine_server.router.requests.journal import (
    MAX_LOGPROB_BYTES,
    MAX_RESUMES,
    Journal,
    resume_body,
    resume_message,
)
from engine_server.server.api.chat.request import ChatRequest
from engine_server.server.api.continuation import resumed_stream
from engine_server.server.api.generation_request import parse_request
from engine_server.server.api.responses.request import ResponsesRequest

LOGPROBS = [
    RepeatedLogprobs(1, [ReportedLogprob(5, -0.1234567, 2, ", "), ReportedLogprob(0, -1e-05, 1, None)]),
    RepeatedLogprobs(3, [ReportedLogprob(7, -9999.0, None, "")]),
]
FIRST = TokenReport(seed=-7, token_ids=[1, 2], events=2, id="chatcmpl-1", created=5)


def recorded(*reports: TokenReport) -> Journal:
    journal = Journal(fingerprint=b"weights-1")
    for report in reports:
        journal.record(report)
    return journal


def test_journal_has_the_tokens_and_events_of_all_reports_and_the_identity_of_the_first():
    journal = recorded(FIRST, TokenReport(seed=-7, token_ids=[3], events=0), TokenReport(-7, [4], 3))
    assert journal.token_ids == [1, 2, 3, 4]
    assert (journal.events, journal.id, journal.created, journal.seed) == (5, "chatcmpl-1", 5, -7)


def test_request_to_continue_a_stream_has_the_terms_of_its_beginning():
    prompt, settings = "a" * 32, b"b" * 32
    counted = TokenReport(
        -7, [1], 1, id="chatcmpl-1", created=5, cached_tokens=16, prompt_tokens=20, prompt_hash=prompt
    )
    uncounted = TokenReport(-7, [4], 1)
    request = Request(b"POST", b"/v1/completions", b"", {}, b"{}", http11=True, last=False, id=b"one")

    journal = recorded(counted, uncounted)
    journal.settings = settings
    head = resume_message(request, b"", journal)[0]
    without_terms = resume_message(request, b"", recorded(FIRST, uncounted))[0]

    assert b"Fairlead-Stream: cached=16, prompt=%b, settings=%b\r\n" % (prompt.encode(), settings) in head
    assert b"Fairlead-Stream" not in without_terms


def test_tokens_that_are_not_kept_are_counted_and_known_with_the_prompt_of_the_first_report():
    journal = recorded(msgspec.structs.replace(FIRST, prompt_tokens=9))
    journal.forgo()
    journal.record(TokenReport(seed=-7, token_ids=[3, 4], events=1))

    assert journal.num_tokens == 4
    assert journal.known_usage == ReportedUsage(9, 4)
    assert recorded(FIRST).known_usage is None


def test_stream_whose_last_report_was_forwarded_has_ended_and_is_not_resumable():
    usage = ReportedUsage(3, 2)
    journal = recorded(FIRST, TokenReport(seed=-7, events=1, usage=usage))
    assert journal.ended and journal.usage == usage


def test_stream_is_resumed_three_times_at_most():
    journal = recorded(FIRST)
    resumable = []
    for _ in range(MAX_RESUMES):
        resumable.append(journal.state.resumable)
        journal.resume()

    assert all(resumable) and not journal.state.resumable
    assert journal.token_ids == [1, 2]


def test_stream_without_the_engines_model_is_not_resumable():
    journal = recorded(FIRST)
    journal.fingerprint = b""
    assert not journal.state.resumable


def test_stream_of_unreported_events_is_not_resumable():
    journal = Journal(fingerprint=b"weights-1")
    journal.record_unreported()
    assert not journal.state.resumable


def test_stream_without_an_event_starts_again_with_the_tokens_of_another_engine():
    journal = recorded(TokenReport(seed=1, token_ids=[1], events=0, id="a", created=1))
    assert not journal.begun and journal.state.resumable
    journal.resume()
    journal.fingerprint = b"weights-2"
    journal.record(FIRST)
    assert (journal.id, journal.seed, journal.token_ids) == ("chatcmpl-1", -7, [1, 2])


def test_stream_with_more_tokens_than_are_kept_is_not_resumable_and_keeps_none(monkeypatch):
    monkeypatch.setattr(journal_module, "MAX_TOKENS", 3)
    journal = recorded(FIRST, TokenReport(-7, [3], 1))
    assert journal.token_ids
    journal.record(TokenReport(-7, [4], 1))
    journal.record(TokenReport(-7, [5], 1))
    assert not journal.token_ids and journal.events == 5 and not journal.state.resumable


def test_request_to_continue_a_stream_has_the_log_probabilities_of_all_reports_as_they_were() -> None:
    journal = recorded(FIRST, TokenReport(-7, [3], 1, LOGPROBS[:1]), TokenReport(-7, [4], 1, LOGPROBS[1:]))

    request = parse_request(ResponsesRequest, resume_body(b'{"model": "m", "input": "a"}', journal))

    resume = resumed_stream(RouterHead(resumes=True), request.model_extra or {}, "weights-1")
    assert resume is not None and resume.logprobs == LOGPROBS
    assert b"logprobs" not in resume_body(b"{}", recorded(FIRST))


def test_stream_with_more_log_probabilities_than_are_kept_is_not_resumable_and_keeps_none() -> None:
    report = TokenReport(-7, [3], 1, LOGPROBS)
    journal = recorded(FIRST)
    while journal.state.resumable:
        held = len(journal.logprob_text)
        journal.record(report)

    assert held <= MAX_LOGPROB_BYTES < held + 100
    assert not journal.logprobs and not journal.token_ids
    journal.record(report)
    assert not journal.logprobs


def test_stream_whose_log_probabilities_find_no_memory_goes_on_and_is_not_resumed() -> None:
    budget = BodyBudget(FREE_BYTES)
    journal = recorded(FIRST)
    journal.memory = AnswerMemory(budget, Key("default", "m"))
    report = TokenReport(-7, [3], 1, LOGPROBS * 100)
    while len(journal.logprob_text) < FREE_BYTES // 2:
        journal.record(report)
    assert journal.state.resumable and not budget.used

    for _ in range(50):
        journal.record(report)

    assert not journal.state.resumable and not journal.logprobs and budget.used <= FREE_BYTES


@pytest.mark.parametrize(
    "field",
    [
        "",
        '"fairlead": {"resume": {"id": "smuggled"}}, ',
        r'"fairl\u0065ad": {"resume": {"id": "smuggled"}}, "fairlead": null, ',
    ],
)
@pytest.mark.parametrize("end", ["", " \r\n\t"])
def test_engine_reads_the_routers_field_and_never_a_clients_of_the_same_name(field, end):
    text = "{" + field + '"model": "m", "messages": [{"role": "user", "content": "}"}]}' + end
    body = bytearray(text.encode())

    request = parse_request(ChatRequest, resume_body(body, recorded(FIRST)))

    resume = resumed_stream(RouterHead(resumes=True), request.model_extra or {}, "weights-1")
    assert resume is not None
    assert (resume.id, resume.created, resume.seed, resume.events) == ("chatcmpl-1", 5, -7, 2)
    assert resume.token_ids == [1, 2]
    assert request.messages[0].text == "}"
    assert body == bytearray(text.encode())
