"""Lifecycles: counts in flight, whatever ends a request."""

from time import perf_counter

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from engine_server.contract.cluster.api import Key
from engine_server.contract.wire.continuation import TokenReport
from engine_server.contract.wire.engine_report import ReportedUsage
from engine_server.router.http.wire import Request
from engine_server.router.metrics import Metrics
from engine_server.router.requests.charge import MOST_TOKENS
from engine_server.router.requests.journal import Journal
from engine_server.router.requests.lifecycle import Lifecycle
from engine_server.router.routing.endpoint import Address, Endpoint

REQUEST = Request(b"POST", b"/v1/x", b"", {}, bytearray(), http11=True, last=False, id=b"id")

steps = st.tuples(
    st.integers(0, 3), st.sampled_from(["leave", "visit", "break", "answer"]), st.integers(0, 1 << 25)
)


@given(st.lists(steps, max_size=50))
def test_every_end_of_a_request_counts_down(steps):
    """Requests overlap, get a first token, move between endpoints, end and fail.

    Those in flight are those that have not ended, and no load is left.
    """
    metrics, endpoints = Metrics(), [Endpoint(Key("default", "m"), Address("h", port)) for port in range(4)]
    open_: list[Lifecycle] = []
    for number, (at, what, prompt_bytes) in enumerate(steps):
        if what == "visit" or not open_:
            life = Lifecycle(metrics, REQUEST).__enter__() if number % 2 or not open_ else open_.pop()
            life.visit(endpoints[at], prompt_bytes)
            open_.append(life)
        elif what == "answer":
            open_[at % len(open_)].record_answer(200)
        elif what == "leave":
            open_.pop(at % len(open_)).__exit__(None, None, None)
        else:
            open_.pop().__exit__(OSError, OSError(), None)
        assert metrics.in_flight == sum(e.in_flight for e in endpoints) == len(open_)
    for life in open_:
        life.__exit__(None, None, None)
    assert metrics.in_flight == 0
    assert all(endpoint.in_flight == 0 and endpoint.load(perf_counter()) == 0.0 for endpoint in endpoints)


def test_a_request_that_waits_for_a_replica_counts_at_no_endpoint():
    metrics, endpoint = Metrics(), Endpoint(Key("default", "m"), Address("h", 1))
    with Lifecycle(metrics, REQUEST) as life:
        life.visit(endpoint, 1 << 20)

        life.leave()

        assert (metrics.in_flight, endpoint.in_flight, endpoint.load(perf_counter())) == (1, 0, 0.0)
    assert (metrics.in_flight, endpoint.in_flight) == (0, 0)


class RecordingCaller:
    """Records the tokens that its requests used."""

    name = "caller"

    def __init__(self) -> None:
        self.used: list[ReportedUsage] = []

    def admit(self, now: float, estimated_tokens: int) -> None: ...

    def settle(self, now: float, usage: ReportedUsage, estimated_tokens: int) -> None:
        self.used.append(usage)


def test_caller_pays_for_a_streams_reported_tokens_and_for_those_of_a_stream_that_ends_early():
    caller, body = RecordingCaller(), b"x" * 400
    request = msgspec.structs.replace(REQUEST, body=body)
    for reports in (
        [TokenReport(1, [1, 2], 2), TokenReport(1, events=1, usage=ReportedUsage(9, 2))],
        [TokenReport(1, [1, 2, 3], 3)],
    ):
        with Lifecycle(Metrics(), request) as lifecycle:
            lifecycle.admit(caller, len(body))
            lifecycle.visit(Endpoint(Key("default", "m"), Address("h", 1)), len(body))
            lifecycle.record_answer(200)
            lifecycle.journal = Journal()
            for report in reports:
                lifecycle.journal.record(report)
    whole, cut = caller.used
    assert whole == ReportedUsage(9, 2)
    assert cut.completion_tokens == 3 and 0 < cut.prompt_tokens < len(body)


def test_caller_pays_for_a_stream_of_compressed_events_by_its_bytes():
    caller = RecordingCaller()
    with Lifecycle(Metrics(), msgspec.structs.replace(REQUEST, body=b"x" * 400)) as lifecycle:
        lifecycle.admit(caller, 400)
        lifecycle.visit(Endpoint(Key("default", "m"), Address("h", 1)), 400)
        lifecycle.record_answer(200)
        lifecycle.compressed_bytes = 80
    assert caller.used == [ReportedUsage(100, 20)]


def test_caller_pays_at_most_what_a_request_can_use_for_a_stream_without_reports():
    caller = RecordingCaller()
    with Lifecycle(Metrics(), msgspec.structs.replace(REQUEST, body=b"x" * 100)) as lifecycle:
        lifecycle.admit(caller, 100)
        lifecycle.visit(Endpoint(Key("default", "m"), Address("h", 1)), 100)
        lifecycle.record_answer(200)
        lifecycle.journal = Journal(events=10**8)
    (used,) = caller.used
    assert used.prompt_tokens + used.completion_tokens <= MOST_TOKENS + 16 * 100
