"""Decisions of the attempt loop as a table: a result, what is known of the endpoint, and the attempts so far."""

from typing import Any

import msgspec
import pytest

from engine_server.contract.cluster.api import Key
from engine_server.contract.wire.errors import ErrorCode
from engine_server.router.http.exchange import Exchange
from engine_server.router.http.wire import Request
from engine_server.router.requests.hold.hold import Held
from engine_server.router.requests.hold.line import Place
from engine_server.router.requests.journal import StreamState
from engine_server.router.requests.next_step import (
    MAX_ATTEMPTS,
    Attempts,
    Continue,
    Cut,
    Fail,
    PassOn,
    Refuse,
    Retry,
    RouteView,
    Step,
    View,
    Wait,
    next_step,
    without_endpoint,
)
from engine_server.router.requests.outcome import AttemptResult, Outcome, Refusal
from engine_server.router.routing.directory import Target
from engine_server.router.routing.endpoint import Address, Endpoint
from engine_server.router.routing.health import Cause
from engine_server.router.routing.verdict import Kind, Verdict

ONE, TWO, THREE = (Endpoint(Key("default", "m"), Address("192.0.2.1", port)) for port in (1, 2, 3))
REQUEST = Request(b"POST", b"/v1/completions", b"", {}, b"{}", http11=True, last=False, id=b"id")
HELD = Held(Exchange(None, REQUEST), Target(Key("default", "m")), "m", Place(0, 0, 1, ""), 1.0, 1.0)
VIEW = View(
    model="m",
    live=True,
    expendable=True,
    fingerprint=b"weights-1",
    has_fingerprint=True,
    for_adapter=False,
    known_to_engines=False,
)
REFUSED_CONNECT = ConnectionRefusedError("refused")
UNANSWERED = Verdict(Kind.FAILED, "it closed a connection without an answer")
EJECTED = Verdict(Kind.EJECT, "refused", Cause.UNREACHABLE)
NO_ANSWER_TO_CONNECT = Verdict(Kind.SUSPECT, "no answer to a connect")
BUDGET, NO_BUDGET = True, False

# Streams: of which the client has only the head, and events that another engine can continue, or none can.
HEAD = StreamState(begun=False, resumable=True, fingerprint=b"weights-1")
BEGUN = StreamState(begun=True, resumable=True, fingerprint=b"weights-1")
STUCK = StreamState(begun=True, resumable=False, fingerprint=b"weights-1")

TOLD = {"known_to_engines": True}
OTHER_MAKE = {"known_to_engines": True, "has_fingerprint": False}
ADAPTER = {"known_to_engines": True, "for_adapter": True}
# Codes of failures that may be the engine's or the request's.
FAILURES = (
    ErrorCode.ABORTED,
    ErrorCode.INTERNAL_ERROR,
    ErrorCode.NO_REPLICA,
    ErrorCode.SATURATED,
    ErrorCode.NO_ANSWER,
    ErrorCode.INTERRUPTED,
)
# Codes of engines that are full, or that take no further requests.
NO_ROOM = (ErrorCode.QUEUE_FULL, ErrorCode.BUFFER_FULL)
GOING = (ErrorCode.DRAINING, ErrorCode.LOADING, ErrorCode.ENGINE_DEAD)
# Status, code, what is known, the verdict, and whether the retry needs a budget: None if each engine would refuse.
REFUSALS: list[tuple[int, ErrorCode | None, dict[str, bool], Verdict | None, bool | None]] = [
    *((503, code, {}, Verdict(Kind.FULL, seconds=7.0), BUDGET) for code in NO_ROOM),
    *(
        (503, code, {}, Verdict(Kind.EJECT, f"it answered {code}", Cause.REFUSING), NO_BUDGET)
        for code in GOING
    ),
    (404, ErrorCode.MODEL_NOT_FOUND, {}, None, None),
    (404, ErrorCode.MODEL_NOT_FOUND, ADAPTER, Verdict(Kind.LACKING), BUDGET),
    (
        404,
        ErrorCode.MODEL_NOT_FOUND,
        TOLD,
        Verdict(Kind.RETIRE, "its address belongs to another deployment"),
        NO_BUDGET,
    ),
    (404, ErrorCode.MODEL_NOT_FOUND, OTHER_MAKE, None, NO_BUDGET),
    (503, None, {}, Verdict(Kind.SUSPECT, "it answered 503", Cause.REFUSING), BUDGET),
    (500, None, {}, Verdict(Kind.FAILED, "it answered 500"), BUDGET),
    (404, None, {}, None, None),
    *(
        (code.status, code, {}, Verdict(Kind.FAILED, f"it answered {code.status}"), BUDGET)
        for code in FAILURES
    ),
    # Each engine would refuse the request.
    *(
        (code.status, code, {}, None, None)
        for code in ErrorCode
        if code not in (*FAILURES, *NO_ROOM, *GOING, ErrorCode.MODEL_NOT_FOUND)
    ),
]


def failed(code: ErrorCode, verdict: Verdict | None = None, *, interrupts: bool = False) -> tuple[Any, ...]:
    """Return the summary of a step that fails with this code."""
    return Fail, code, verdict, interrupts


def summary(step: Step) -> Step | tuple[Any, ...]:
    """Return a step so that it can be compared: errors are not equal to others."""
    if isinstance(step, Fail):
        return failed(step.error.code, step.verdict, interrupts=step.interrupts)
    return step


def changed(changes: dict[str, Any]) -> View:
    return msgspec.structs.replace(VIEW, **changes)


def after(reason: str, **fields: Any) -> Attempts:
    """Return the attempts that a step carries on, after two endpoints."""
    return Attempts(**{"tried": (ONE, TWO), "retry_reason": reason, **fields})


def refusal_cases():
    for status, code, view, verdict, budgeted in REFUSALS:
        refusal = Refusal(status, code, 7.0)
        reason = str(code or "refused")
        for stream in (None, HEAD, BEGUN):
            unfit = (TWO,) if code == ErrorCode.MODEL_MISMATCH and stream is BEGUN else ()
            budget = bool(budgeted) and stream is not BEGUN
            elsewhere = Retry(
                attempts=after(reason, refused=True, budgeted=budget, unfit=unfit),
                verdict=verdict,
            )
            expected = PassOn() if budgeted is None and stream is not BEGUN else elsewhere
            result = AttemptResult(Outcome.REFUSED, refusal, stream)
            progress = "" if stream is None else ", begun" if stream.begun else ", head"
            id_ = f"{status} {code}, {' '.join(view) or 'by default'}{progress}"
            yield pytest.param(result, changed(view), Attempts(tried=(ONE, TWO)), expected, id=id_)


def broken_stream_cases():
    """Streams that an engine broke off with an error: its code decides about the engine alone."""
    for code in (one for one in ErrorCode if one.breaks_off):
        refusal = Refusal(503, code, 1.0)
        verdict = (
            Verdict(Kind.FULL, seconds=1.0) if code in NO_ROOM else Verdict(Kind.FAILED, "it answered 503")
        )
        if code in GOING:
            verdict = Verdict(Kind.EJECT, f"it answered {code}", Cause.REFUSING)
        result = AttemptResult(Outcome.INTERRUPTED, refusal, BEGUN)
        carried = Continue(attempts=after(code, tried=(TWO,)), verdict=verdict)
        yield pytest.param(result, VIEW, Attempts(tried=(ONE, TWO)), carried, id=f"broken off with {code}")
        stuck = msgspec.structs.replace(result, stream=STUCK)
        ends = failed(ErrorCode.INTERRUPTED, verdict, interrupts=True)
        yield pytest.param(stuck, VIEW, Attempts(tried=(ONE, TWO)), ends, id=f"stuck after {code}")


def unfit_cases():
    """Streams of compressed events, for which a client's head has no name."""
    for stream in (HEAD, BEGUN):
        expected = Retry(attempts=after("unfit", refused=True, unfit=(TWO,)))
        id_ = f"unfit, {'begun' if stream.begun else 'head'}"
        yield pytest.param(
            AttemptResult(Outcome.UNFIT, None, stream), VIEW, Attempts(tried=(ONE, TWO)), expected, id=id_
        )


def result(outcome: Outcome, **fields: Any) -> AttemptResult:
    return AttemptResult(outcome, **fields)


def refused(code: ErrorCode, stream: StreamState) -> AttemptResult:
    return AttemptResult(Outcome.REFUSED, Refusal(409, code, 1.0), stream)


TRIED = Attempts(tried=(ONE, TWO))
LAST_UNANSWERED = Attempts(unanswered=MAX_ATTEMPTS - 1, tried=(ONE, TWO))
LAST_UNREACHABLE = Attempts(unreachable=MAX_ATTEMPTS - 1, tried=(ONE, TWO))
REFUSED_CONNECTION = result(Outcome.UNREACHABLE, connect_error=REFUSED_CONNECT)
NO_CONNECTION = result(Outcome.UNREACHABLE, connect_error=TimeoutError())
CASES = {
    "an answer that is no stream of events is cut": (result(Outcome.INTERRUPTED), VIEW, TRIED, Cut()),
    "a stream is continued, and may return to endpoints before the last one": (
        result(Outcome.INTERRUPTED, stream=BEGUN),
        VIEW,
        Attempts(unanswered=2, unreachable=1, tried=(ONE, TWO), refused=True, budgeted=True, held=HELD),
        Continue(attempts=after("interrupted", tried=(TWO,), unreachable=1)),
    ),
    "a stream without an event keeps the end of its wait, and the refusals": (
        result(Outcome.INTERRUPTED, stream=HEAD),
        VIEW,
        Attempts(tried=(ONE, TWO), refused=True, held=HELD),
        Continue(attempts=after("interrupted", tried=(TWO,), refused=True, held=HELD)),
    ),
    "a retry for the rest of a stream keeps the end of its wait": (
        result(Outcome.UNANSWERED, stream=BEGUN),
        VIEW,
        Attempts(tried=(ONE, TWO), held=HELD),
        Retry(attempts=after("unanswered", unanswered=1, held=HELD), verdict=UNANSWERED),
    ),
    "a stream without an event begins again": (
        result(Outcome.INTERRUPTED, stream=HEAD),
        VIEW,
        TRIED,
        Continue(attempts=after("interrupted", tried=(TWO,))),
    ),
    "a stream that no engine can continue ends": (
        result(Outcome.INTERRUPTED, stream=STUCK),
        VIEW,
        TRIED,
        failed(ErrorCode.INTERRUPTED, interrupts=True),
    ),
    "a refused connection ejects, and does not count": (
        REFUSED_CONNECTION,
        VIEW,
        LAST_UNREACHABLE,
        Retry(attempts=after("unreachable", unreachable=MAX_ATTEMPTS - 1), verdict=EJECTED),
    ),
    "a connect without an answer that ejects does not count": (
        NO_CONNECTION,
        VIEW,
        LAST_UNREACHABLE,
        Retry(attempts=after("unreachable", unreachable=MAX_ATTEMPTS - 1), verdict=NO_ANSWER_TO_CONNECT),
    ),
    "a connect without an answer to an endpoint that is out already does not count": (
        NO_CONNECTION,
        changed({"live": False, "expendable": False}),
        LAST_UNREACHABLE,
        Retry(attempts=after("unreachable", unreachable=MAX_ATTEMPTS - 1), verdict=NO_ANSWER_TO_CONNECT),
    ),
    "a connect without an answer counts if the endpoint stays": (
        NO_CONNECTION,
        changed({"expendable": False}),
        TRIED,
        Retry(attempts=after("unreachable", unreachable=1), verdict=NO_ANSWER_TO_CONNECT),
    ),
    "the cause of a failed connect is logged": (
        result(Outcome.UNREACHABLE, connect_error=OSError("too many open files")),
        VIEW,
        TRIED,
        Retry(attempts=after("unreachable"), verdict=Verdict(Kind.SUSPECT, "too many open files")),
    ),
    "no replica can be connected to": (
        NO_CONNECTION,
        changed({"expendable": False}),
        LAST_UNREACHABLE,
        failed(ErrorCode.NO_REPLICA, NO_ANSWER_TO_CONNECT),
    ),
    "no replica can be connected to for the rest of a stream": (
        msgspec.structs.replace(NO_CONNECTION, stream=BEGUN),
        changed({"expendable": False}),
        LAST_UNREACHABLE,
        failed(ErrorCode.INTERRUPTED, NO_ANSWER_TO_CONNECT, interrupts=True),
    ),
    "an attempt without an answer is a failure": (
        result(Outcome.UNANSWERED),
        VIEW,
        Attempts(tried=(ONE, TWO), budgeted=True, refused=True, retry_reason="queue_full"),
        Retry(attempts=after("unanswered", unanswered=1, refused=True), verdict=UNANSWERED),
    ),
    "an engine that refuses connections after it has not answered is ejected": (
        result(Outcome.UNANSWERED, connect_error=REFUSED_CONNECT),
        VIEW,
        TRIED,
        Retry(attempts=after("unanswered", unanswered=1), verdict=EJECTED),
    ),
    "three engines did not answer": (
        result(Outcome.UNANSWERED),
        VIEW,
        LAST_UNANSWERED,
        failed(ErrorCode.NO_ANSWER, UNANSWERED),
    ),
    "three engines did not answer for a stream without an event": (
        result(Outcome.UNANSWERED, stream=HEAD),
        VIEW,
        LAST_UNANSWERED,
        failed(ErrorCode.NO_ANSWER, UNANSWERED),
    ),
    "three engines did not answer for the rest of a stream": (
        result(Outcome.UNANSWERED, stream=BEGUN),
        VIEW,
        LAST_UNANSWERED,
        failed(ErrorCode.INTERRUPTED, UNANSWERED, interrupts=True),
    ),
    "a silent engine has its verdict from the watch": (
        result(Outcome.SILENT),
        VIEW,
        TRIED,
        Retry(attempts=after("silent", unanswered=1)),
    ),
    "three engines are silent": (
        result(Outcome.SILENT), VIEW, LAST_UNANSWERED, failed(ErrorCode.NO_ANSWER)
    ),
    "a refusal does not add to attempts without an answer": (
        refused(ErrorCode.MODEL_MISMATCH, BEGUN),
        VIEW,
        LAST_UNANSWERED,
        Retry(attempts=after("model_mismatch", unanswered=MAX_ATTEMPTS - 1, refused=True, unfit=(TWO,))),
    ),
    "an engine with another fingerprint is no attempt for a stream": (
        refused(ErrorCode.MODEL_MISMATCH, BEGUN),
        changed({"fingerprint": b"weights-2"}),
        TRIED,
        Retry(attempts=after("model_mismatch", tried=(ONE,), refused=True, unfit=(TWO,))),
    ),
    "an engine of another model that does not say which is an attempt": (
        refused(ErrorCode.MODEL_MISMATCH, BEGUN),
        changed({"fingerprint": None}),
        TRIED,
        Retry(attempts=after("model_mismatch", refused=True, unfit=(TWO,))),
    ),
    "an engine that compares settings and prompts is no attempt for a stream": (
        refused(ErrorCode.MODEL_MISMATCH, BEGUN),
        changed({"has_settings": True}),
        TRIED,
        Retry(attempts=after("model_mismatch", tried=(ONE,), refused=True, unfit=(TWO,))),
    ),
    "another refusal is an attempt whatever the fingerprint": (
        refused(ErrorCode.INVALID_VALUE, BEGUN),
        changed({"fingerprint": b"weights-2"}),
        TRIED,
        Retry(attempts=after("invalid_value", refused=True)),
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("result", "view", "attempts", "step"),
    [
        *(pytest.param(*case, id=name) for name, case in CASES.items()),
        *refusal_cases(),
        *broken_stream_cases(),
        *unfit_cases(),
    ],
)
def test_next_step(result, view, attempts, step):
    assert summary(next_step(result, view, attempts)) == step


def test_every_outcome_but_a_finished_one_has_a_step():
    tried = {case[0].outcome for case in CASES.values()} | {Outcome.REFUSED, Outcome.UNFIT}
    assert tried == set(Outcome) - {Outcome.FINISHED}


# Without an endpoint. Live replicas that are not full have been tried, or lack the adapter, or have other weights.
NOT_HOLDING = RouteView(model="m", has_live=True, seconds_until_room=None, holds=False, holds_when_full=False)
HOLDING = msgspec.structs.replace(NOT_HOLDING, holds=True)
EMPTY = {"has_live": False}
FULL = {"seconds_until_room": 9.0}
FULL_QUEUE = {"seconds_until_room": 9.0, "holds_when_full": True}
FRESH = Attempts()
TRIED_ONE = Attempts(tried=(ONE,), retry_reason="unanswered")
REFUSED_ONE = Attempts(tried=(ONE,), refused=True, retry_reason="internal_error")
FULL_ONE = Attempts(tried=(ONE,), refused=True, retry_reason="queue_full")
RELEASED_ONE = msgspec.structs.replace(FULL_ONE, held=HELD)
SATURATED, NO_REPLICA = failed(ErrorCode.SATURATED), failed(ErrorCode.NO_REPLICA)
INTERRUPTED = failed(ErrorCode.INTERRUPTED, interrupts=True)


@pytest.mark.parametrize(
    ("attempts", "state", "holding", "not_holding"),
    [
        # `Wait` without holding leads to the error that says when a replica may come.
        pytest.param(FRESH, EMPTY, Wait(), Wait(), id="no replica"),
        pytest.param(FRESH, {}, Wait(), Wait(), id="behind those that wait"),
        pytest.param(FRESH, FULL, SATURATED, SATURATED, id="all full"),
        pytest.param(FRESH, FULL_QUEUE, Wait(), Wait(), id="all full, and held then"),
        pytest.param(TRIED_ONE, {}, Wait(), NO_REPLICA, id="the others were tried"),
        pytest.param(TRIED_ONE, EMPTY, Wait(), NO_REPLICA, id="the last one is out"),
        pytest.param(TRIED_ONE, FULL, SATURATED, SATURATED, id="the others are full"),
        pytest.param(REFUSED_ONE, {}, Refuse(), Refuse(), id="refused"),
        pytest.param(REFUSED_ONE, EMPTY, Wait(), Refuse(), id="refused, and out"),
        pytest.param(FULL_ONE, {}, Refuse(), Refuse(), id="full, and the others were tried"),
        pytest.param(FULL_ONE, FULL, SATURATED, SATURATED, id="full, as all others"),
        pytest.param(FULL_ONE, FULL_QUEUE, Wait(), Refuse(), id="full, as all others, and held then"),
        pytest.param(RELEASED_ONE, FULL, Wait(), Wait(), id="released in vain"),
        pytest.param(RELEASED_ONE, {}, Wait(), Wait(), id="released in vain, with room again"),
    ],
)
def test_step_of_a_request_without_an_endpoint(attempts, state, holding, not_holding):
    steps = [
        summary(without_endpoint(msgspec.structs.replace(view, **state), attempts, begun=False))
        for view in (HOLDING, NOT_HOLDING)
    ]

    assert steps == [holding, not_holding]


@pytest.mark.parametrize(
    ("attempts", "state", "holding"),
    [
        (FRESH, {}, INTERRUPTED),
        (FRESH, EMPTY, Wait()),
        (FRESH, FULL, Wait()),
        (TRIED_ONE, {}, Wait()),
        (TRIED_ONE, EMPTY, Wait()),
        (REFUSED_ONE, {}, INTERRUPTED),
        (REFUSED_ONE, EMPTY, Wait()),
        (FULL_ONE, FULL, Wait()),
    ],
)
def test_step_of_a_stream_that_broke_off_without_an_endpoint(attempts, state, holding):
    steps = [
        summary(without_endpoint(msgspec.structs.replace(view, **state), attempts, begun=True))
        for view in (HOLDING, NOT_HOLDING)
    ]

    assert steps == [holding, INTERRUPTED]
