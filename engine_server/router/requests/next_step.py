"""The decisions of the attempt loop: what follows a failed attempt, and what follows if no endpoint is left.

The functions are pure. The loop applies the verdict of a step, counts what the step says, and takes it.
"""

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from engine_server.contract.wire.errors import Elsewhere, ErrorCode
from engine_server.router import errors
from engine_server.router.errors import RequestError
from engine_server.router.requests.hold.hold import Held
from engine_server.router.requests.outcome import AttemptResult, Outcome, Refusal
from engine_server.router.routing.endpoint import Endpoint
from engine_server.router.routing.health import Cause
from engine_server.router.routing.verdict import Kind, Verdict

# Attempts before the first byte. A request that crashes engines must not reach all of them.
MAX_ATTEMPTS = 3
# Codes of an engine that has no room now, for the request or for its body.
FULL = (ErrorCode.QUEUE_FULL, ErrorCode.BUFFER_FULL)


class Attempts(msgspec.Struct, frozen=True):
    """The attempts of one request so far, all of which failed."""

    # Attempts that may have failed because of the request.
    unanswered: int = 0
    # Endpoints that could not be connected to and were not ejected.
    unreachable: int = 0
    # The endpoints of the attempts, the last one at the end.
    tried: tuple[Endpoint, ...] = ()
    # Endpoints that cannot continue the stream since it broke off: they have another model, settings or prompt.
    unfit: tuple[Endpoint, ...] = ()
    # An engine refused the request: the last refusal decides about the answer if no other engine gives one.
    refused: bool = False
    # The reason for which the request is sent elsewhere, for the metrics.
    retry_reason: str = ""
    # The retry counts against the budget, since nothing else limits it.
    budgeted: bool = False
    # The last wait for a replica.
    held: Held | None = None

    def add(self, endpoint: Endpoint) -> "Attempts":
        """Return these attempts with one more, at `endpoint`."""
        return replace(self, tried=(*self.tried, endpoint))


class View(msgspec.Struct, frozen=True):
    """The state of an endpoint and its route after an attempt at it failed."""

    # The model's name in the request.
    model: str
    # It may be given requests.
    live: bool
    # Enough others are live for a suspicion to eject it.
    expendable: bool
    # The fingerprint of the model or adapter in the request, as it reported it; None if it did not.
    fingerprint: bytes | None
    # It has reported the fingerprint of its own model, which engines of another make do not.
    has_fingerprint: bool
    # The request is for an adapter.
    for_adapter: bool
    # The engine was told the deployment for which it is to answer.
    known_to_engines: bool
    # It has reported the settings of its streams, and compares those and the prompt of a stream that it is to continue.
    has_settings: bool = False


class RouteView(msgspec.Struct, frozen=True):
    """The state of a route none of whose endpoints is to get the request."""

    # The model's name in the request.
    model: str
    # An endpoint is live, even if it is full.
    has_live: bool
    # Time in seconds until the first of the live endpoints is to be tried again, if all of them are full.
    seconds_until_room: float | None
    # Requests may wait for a replica, and also for one with room.
    holds: bool
    holds_when_full: bool


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """The next action for a request, with at most one verdict on its endpoint."""

    verdict: Verdict | None = None


class Retry(Step, frozen=True, kw_only=True):
    """Send the request to another endpoint."""

    attempts: Attempts


class Continue(Step, frozen=True, kw_only=True):
    """Continue at another endpoint the stream that broke off, which is counted by the reason of the retry."""

    attempts: Attempts


class PassOn(Step, frozen=True):
    """Answer with the last refusal, which each engine would give."""


class Refuse(Step, frozen=True):
    """Answer with the error that the last refusal means, since no engine is left that may not refuse."""


class Cut(Step, frozen=True):
    """Close the client's connection: an answer that is no stream of events was interrupted."""


class Wait(Step, frozen=True):
    """Hold the request until an endpoint may take it."""


class Fail(Step, frozen=True, kw_only=True):
    """Answer with an error of the router's own."""

    error: RequestError
    # It interrupts an answer of which the client has some.
    interrupts: bool = False


def next_step(
    result: AttemptResult, view: View, attempts: Attempts
) -> Retry | Continue | PassOn | Cut | Fail:
    """Return what follows an attempt that did not finish, and is the last of `attempts`."""
    stream, refusal = result.stream, result.refusal
    begun = stream is not None and stream.begun
    judgement = judge(refusal, view) if refusal is not None else None
    verdict = judgement.verdict if judgement is not None else None
    reason = refusal.code if refusal is not None and refusal.code is not None else result.outcome
    attempts = replace(attempts, retry_reason=str(reason), budgeted=False)
    match result.outcome:
        case Outcome.INTERRUPTED:
            if stream is None:
                return Cut()
            if result.starved:
                return Fail(error=errors.no_room_for_answer(view.model), interrupts=True, verdict=verdict)
            if not stream.resumable:
                return Fail(error=errors.interrupted(view.model), interrupts=True, verdict=verdict)
            attempts = replace(attempts, tried=attempts.tried[-1:], unfit=(), unanswered=0)
            if begun:
                # Each break has a longest wait of its own, and no refusal yet.
                attempts = replace(attempts, held=None, refused=False)
            return Continue(attempts=attempts, verdict=verdict)
        case Outcome.UNREACHABLE:
            assert result.connect_error is not None
            verdict = judge_connect(result.connect_error)
            stays = view.live and verdict.kind is Kind.SUSPECT and not view.expendable
            attempts = replace(attempts, unreachable=attempts.unreachable + stays)
        case Outcome.UNANSWERED:
            verdict = Verdict(Kind.FAILED, "it closed a connection without an answer")
            if result.connect_error is not None:
                verdict = judge_connect(result.connect_error)
            attempts = replace(attempts, unanswered=attempts.unanswered + 1)
        case Outcome.SILENT:
            attempts = replace(attempts, unanswered=attempts.unanswered + 1)
        case Outcome.UNFIT:
            attempts = replace(attempts, unfit=(*attempts.unfit, attempts.tried[-1]), refused=True)
        case Outcome.REFUSED if stream is not None and stream.begun:
            tried, unfit = attempts.tried, attempts.unfit
            if reason == ErrorCode.MODEL_MISMATCH:
                unfit = (*unfit, tried[-1])
                if view.has_settings or view.fingerprint not in (None, stream.fingerprint):
                    tried = tried[:-1]  # one that says what it has is no attempt
            attempts = replace(attempts, tried=tried, unfit=unfit, refused=True)
        case Outcome.REFUSED:
            if judgement is None:
                return PassOn()
            attempts = replace(attempts, refused=True, budgeted=judgement.budgeted)
    if attempts.unanswered < MAX_ATTEMPTS and attempts.unreachable < MAX_ATTEMPTS:
        return Retry(attempts=attempts, verdict=verdict)
    if begun:
        return Fail(error=errors.interrupted(view.model), interrupts=True, verdict=verdict)
    if attempts.unanswered < MAX_ATTEMPTS:
        return Fail(error=errors.no_replica(view.model), verdict=verdict)
    return Fail(error=errors.no_answer(view.model, attempts.unanswered), verdict=verdict)


def without_endpoint(view: RouteView, attempts: Attempts, *, begun: bool) -> Wait | Refuse | Fail:
    """Return what follows if no endpoint is to get the request. begun: it is for the rest of a stream."""
    seconds = view.seconds_until_room
    may_wait = view.holds and (seconds is not None or not view.has_live)
    if begun:
        if may_wait or (view.holds and attempts.tried and not attempts.refused):
            return Wait()
        return Fail(error=errors.interrupted(view.model), interrupts=True)
    if seconds is not None and attempts.held is None and not view.holds_when_full:
        return Fail(error=errors.saturated(view.model, seconds))
    if attempts.tried and not attempts.refused and not view.holds:
        return Fail(error=errors.no_replica(view.model))
    was_full = attempts.held is not None and attempts.retry_reason in FULL
    return Wait() if may_wait or was_full or not attempts.refused else Refuse()


class Judgement(msgspec.Struct, frozen=True):
    """What a refusal says of its engine alone: another one may answer."""

    verdict: Verdict | None = None
    budgeted: bool = False


def judge(refusal: Refusal, view: View) -> Judgement | None:
    """Return what a refusal says of its engine, or None if each engine would refuse the request."""
    match refusal.code:
        case code if code in FULL:
            return Judgement(Verdict(Kind.FULL, seconds=refusal.retry_after), budgeted=True)
        case ErrorCode(elsewhere=Elsewhere.ALWAYS):
            return Judgement(Verdict(Kind.EJECT, f"it answered {refusal.code}", Cause.REFUSING))
        case ErrorCode.MODEL_NOT_FOUND if view.for_adapter:
            # The engine lost it just now, or has not loaded it again since a restart.
            return Judgement(Verdict(Kind.LACKING), budgeted=True)
        case ErrorCode.MODEL_NOT_FOUND if view.known_to_engines:
            # An engine of another make knows the names in its arguments alone, and reports no fingerprint.
            if not view.has_fingerprint:
                return Judgement()
            return Judgement(Verdict(Kind.RETIRE, "its address belongs to another deployment"))
        case None if refusal.status == 503:
            return Judgement(Verdict(Kind.SUSPECT, "it answered 503", Cause.REFUSING), budgeted=True)
        case None if refusal.status < 500:
            return None
        case ErrorCode(elsewhere=Elsewhere.NEVER):
            return None
        case _:
            return Judgement(Verdict(Kind.FAILED, f"it answered {refusal.status}"), budgeted=True)


def explain(refusal: Refusal, model: str, known: Sequence[str]) -> RequestError:
    """Return the answer in place of a refusal that says something of its engine alone.

    The engine's text may quote the requests of others, or name models that the caller may not know: it is for the log.

    known: names of the models that the caller may use.
    """
    seconds, text = refusal.retry_after, refusal.text
    match refusal.code:
        case code if code in FULL:
            return errors.saturated(model, seconds)
        case ErrorCode(elsewhere=Elsewhere.ALWAYS):
            return errors.no_replica(model, seconds=seconds, detail=text)
        case ErrorCode.MODEL_NOT_FOUND:
            return errors.not_served(model, known, text)
        case None if refusal.status == 200:
            return errors.compressed(model)
        case None if refusal.status == 503:
            return errors.no_replica(model, seconds=seconds, detail=text)
        case _:
            return errors.replica_failed(model, refusal.status, refusal.code, seconds, text)


def judge_connect(error: OSError) -> Verdict:
    """Return what a connection that could not be opened says of its endpoint."""
    if isinstance(error, ConnectionRefusedError | FileNotFoundError):  # the latter of a Unix socket
        return Verdict(Kind.EJECT, str(error), Cause.UNREACHABLE)
    # The cause may be the router's own: its network, or a lack of file descriptors.
    return Verdict(Kind.SUSPECT, str(error) or "no answer to a connect")
