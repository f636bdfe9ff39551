"""The lifecycle of a request in the router, from its arrival to its end."""

from datetime import UTC, datetime
from math import inf
from time import perf_counter
from typing import TYPE_CHECKING, Self

import msgspec

from engine_server.contract.cluster.api import Key
from engine_server.contract.wire.engine_report import ReportedUsage
from engine_server.router.callers.account import ANYONE, Caller
from engine_server.router.errors import RequestError
from engine_server.router.http.wire import Request
from engine_server.router.metrics import Ended, Metrics
from engine_server.router.rejections import Reason, Sender
from engine_server.router.requests.access_log import Access, AccessLog, logged_path
from engine_server.router.requests.charge import BYTES_PER_TOKEN, chargeable, estimated_tokens
from engine_server.router.requests.journal import Journal
from engine_server.router.routing.directory import Target
from engine_server.router.routing.endpoint import Endpoint

if TYPE_CHECKING:
    from engine_server.router.requests.tracing import Trace

# nginx's status for a client that closed its connection before an answer.
CLIENT_CLOSED_REQUEST = 499
NO_TOKENS = ReportedUsage(0, 0)


class Lifecycle(msgspec.Struct):
    """Counts a request as in flight, in the router and at its endpoint, for as long as the `with` block lasts.

    The end of the answer, an error and a client that hangs up all leave the block, so each of them counts down, and is
    recorded in the metrics, the access log and the request's trace.
    """

    metrics: Metrics
    request: Request
    # None: requests are not logged.
    access_log: AccessLog | None = None
    # None: the request is not traced.
    trace: "Trace | None" = None
    # Times and durations are in seconds (perf_counter).
    started: float = msgspec.field(default_factory=perf_counter)
    time_to_first_byte: float | None = None
    # The time by which the client wants the whole answer; inf if it does not say.
    deadline: float = inf
    # Bytes of the prompt that count as load of the endpoint: none after the first byte of the answer.
    prompt_bytes: int = 0
    # The name in the request, and the deployment that it means; empty and None if there is none.
    model: str = ""
    deployment: Key | None = None
    # The adapter that it means; empty for the deployment's own model.
    adapter: str = ""
    # The endpoint that was tried last, and the number of attempts.
    endpoint: Endpoint | None = None
    attempts: int = 0
    # Set if the answer is a stream of events.
    journal: Journal | None = None
    status: int = CLIENT_CLOSED_REQUEST
    # The name of the sender's key; empty without one.
    key: str = ""
    # The sender, once its limits have admitted the request.
    caller: Caller = ANYONE
    # The tokens of its prompt, estimated.
    estimated: int = 0
    # The tokens of a whole answer; the journal has those of a stream.
    usage: ReportedUsage | None = None
    # Bytes of a stream of compressed events.
    compressed_bytes: int = 0

    def __enter__(self) -> Self:
        self.metrics.in_flight += 1
        return self

    def admit(self, caller: Caller, prompt_size: int) -> None:
        """Count the request at its sender. Raises RequestError (429) if a limit is reached.

        prompt_size: the bytes of its abridged body.
        """
        self.key = caller.name
        self.estimated = estimated_tokens(self.request.path, prompt_size)
        caller.admit(self.started, self.estimated)
        self.caller = caller

    def assign(self, model: str, target: Target) -> None:
        """Count the request at what its model means, and no longer at what it meant before."""
        deployment, adapter = target
        if deployment != self.deployment:
            if self.deployment is not None:
                self.metrics.demand.end(self.deployment)
            self.metrics.demand.begin(deployment)
        self.model, self.deployment, self.adapter = model, deployment, adapter

    def visit(self, endpoint: Endpoint, prompt_bytes: int) -> None:
        """Count the request at `endpoint`, and no longer at the one before."""
        if self.endpoint is not None:
            self.endpoint.release(self.prompt_bytes)
        self.endpoint = endpoint
        self.attempts += 1
        # The end of a resumed prompt's work cannot be seen.
        self.prompt_bytes = prompt_bytes if self.time_to_first_byte is None else 0
        endpoint.count(perf_counter(), self.prompt_bytes)
        if self.trace is not None:
            self.trace.begin_attempt(endpoint)

    @property
    def is_late(self) -> bool:
        """True if the client does not want an answer any more."""
        return self.deadline < inf and perf_counter() >= self.deadline

    @property
    def first_byte_at(self) -> float | None:
        """The time of the answer's first byte, None before it."""
        return None if self.time_to_first_byte is None else self.started + self.time_to_first_byte

    def leave(self) -> None:
        """Count the request at no endpoint: it waits for one."""
        if self.endpoint is not None:
            self.endpoint.release(self.prompt_bytes)
            self.endpoint = None

    def record_answer(self, status: int) -> None:
        """Record the status of the answer, as its first byte is sent to the client."""
        self.status = status
        self.time_to_first_byte = perf_counter() - self.started
        if self.prompt_bytes and self.endpoint is not None:
            self.endpoint.record_first_token(self.prompt_bytes)
            self.prompt_bytes = 0

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, RequestError) and self.time_to_first_byte is None:
            self.record_answer(error.status)
            self.metrics.errors[self.deployment, error.code] += 1
        if self.endpoint is not None:
            self.endpoint.release(self.prompt_bytes)
        if self.deployment is not None:
            self.metrics.demand.end(self.deployment)
        self.metrics.in_flight -= 1
        now = perf_counter()
        if self.usage is None and self.journal is not None:
            self.usage = self.journal.known_usage
        if self.journal is not None:
            self.journal.release()
        if self.usage is not None:
            self.usage = self._chargeable(self.usage, now)
        if self.caller is not ANYONE:
            used = self.usage or chargeable(self._estimated_usage(), self.request.body_size)
            self.caller.settle(now, used, self.estimated)
        duration = now - self.started
        self.metrics.record(
            Ended(
                deployment=self.deployment,
                adapter=self.adapter,
                status=self.status,
                time_to_first_byte=self.time_to_first_byte,
                duration=duration,
                key=self.key,
                usage=self.usage,
            )
        )
        if self.access_log is not None:
            self.access_log.record(self._access(duration))
        if self.trace is not None:
            self.trace.end(self.status, self._attributes())

    def _attributes(self) -> dict[str, str | int]:
        """Return the attributes of the request's span."""
        attributes: dict[str, str | int] = {
            "fairlead.request_id": self.request.id.decode(),
            "fairlead.attempts": self.attempts,
        }
        if self.deployment is not None:
            attributes["fairlead.deployment"] = str(self.deployment)
            attributes["gen_ai.request.model"] = self.model
        if self.adapter:
            attributes["fairlead.adapter"] = self.adapter
        if self.key:
            attributes["fairlead.key"] = self.key
        if self.usage is not None:
            attributes["gen_ai.usage.input_tokens"] = self.usage.prompt_tokens
            attributes["gen_ai.usage.output_tokens"] = self.usage.completion_tokens
        return attributes

    def _access(self, duration: float) -> Access:
        request, first, usage = self.request, self.time_to_first_byte, self.usage
        return Access(
            time=datetime.now(UTC),
            method=request.method.decode(),
            path=logged_path(request.target),
            status=self.status,
            request_id=request.id.decode(),
            seconds=round(duration, 6),
            seconds_to_first_byte=None if first is None else round(first, 6),
            model=self.model,
            deployment="" if self.deployment is None else str(self.deployment),
            adapter=self.adapter,
            endpoint="" if self.endpoint is None else self.endpoint.address.described,
            attempts=self.attempts,
            prompt_tokens=None if usage is None else usage.prompt_tokens,
            completion_tokens=None if usage is None else usage.completion_tokens,
            key=self.key,
        )

    def _chargeable(self, usage: ReportedUsage, now: float) -> ReportedUsage:
        """Return what a reported usage is charged, and report one that was cut."""
        charged = chargeable(usage, self.request.body_size)
        if charged is not usage:
            self.metrics.rejections.report(
                Sender.ENGINE,
                Reason.USAGE_CUT,
                str(self.deployment),
                "an engine reported more tokens than the request can have used; it is charged "
                f"{charged.prompt_tokens + charged.completion_tokens}",
                now,
            )
        return charged

    def _estimated_usage(self) -> ReportedUsage:
        """Return the tokens of a request whose engine reported none: none if it did not work on the answer."""
        journal = self.journal
        # An engine that reports no tokens sends about one event for each. Compressed ones can't be counted.
        streamed = self.compressed_bytes // BYTES_PER_TOKEN
        if journal is not None:
            streamed = max(journal.num_tokens, journal.events)
        worked = self.endpoint is not None or streamed > 0
        if not worked or self.status not in (200, CLIENT_CLOSED_REQUEST):
            return NO_TOKENS
        return ReportedUsage(self.estimated, streamed)
