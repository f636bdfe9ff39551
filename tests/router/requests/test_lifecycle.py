"""Lifecycles: counts in flight, whatever ends a request."""

from hypothesis import given
from hypothesis import strategies as st

from engine_server.router.metrics import Metrics
from engine_server.router.requests.lifecycle import Lifecycle
from engine_server.router.routing.endpoint import Address, Endpoint


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["leave", "visit", "break"])), max_size=50))
def test_every_end_of_a_request_counts_down(steps):
    """Requests overlap, move between endpoints, end and fail: those in flight are those that have not ended."""
    metrics, endpoints = Metrics(), [Endpoint(Address("h", port)) for port in range(4)]
    open_: list[Lifecycle] = []
    for number, (at, what) in enumerate(steps):
        if what == "visit" or not open_:
            life = Lifecycle(metrics).__enter__() if number % 2 or not open_ else open_.pop()
            life.visit(endpoints[at])
            open_.append(life)
        elif what == "leave":
            open_.pop(at % len(open_)).__exit__(None, None, None)
        else:
            open_.pop().__exit__(OSError, OSError(), None)
        assert metrics.in_flight == sum(e.in_flight for e in endpoints) == len(open_)
    for life in open_:
        life.__exit__(None, None, None)
    assert metrics.in_flight == 0 and not any(e.in_flight for e in endpoints)
