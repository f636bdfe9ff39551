"""The bounds of the hold queue, by property: any order of arrivals, departures, replicas and ends of requests."""

from collections import Counter, deque
from dataclasses import dataclass, field

import hypothesis.strategies as st
from hypothesis import given
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine_server.contract.cluster.api import Key
from engine_server.router.errors import RequestError
from engine_server.router.http.exchange import Exchange
from engine_server.router.http.wire import Request
from engine_server.router.requests.hold.hold import Hold, HoldSettings
from engine_server.router.requests.hold.room import FIRST_STEP, Window
from engine_server.router.routing.directory import Adapter, Deployment, Directory, Target
from engine_server.router.routing.endpoint import Address
from engine_server.router.routing.health import Health

KEY = Key("default", "m")
MOST_WAITING = 6
REQUEST = Request(b"POST", b"/v1/completions", b"", {}, bytearray(b"{}"), http11=True, last=False, id=b"id")


@dataclass
class Client:
    """A client that keeps what it is sent."""

    closing: bool = False
    blocked: bool = False
    owner: str = ""
    sent: list[bytes] = field(default_factory=list)

    def write(self, data: bytes) -> None:
        self.sent.append(data)

    def finish(self) -> None:
        pass

    def close(self) -> None:
        raise AssertionError("an exception ended the answer, and is logged")

    def abort(self) -> None:
        pass


class HoldMachine(RuleBasedStateMachine):
    """A queue in front of one deployment."""

    def __init__(self) -> None:
        super().__init__()
        self.health = Health()
        self.directory = Directory("least_load", on_added=self.health.add, on_removed=self.health.remove)
        self.directory.put(Deployment(KEY, ("m",), vouched=True))
        self.hold = Hold(HoldSettings(requests=MOST_WAITING), self.directory, self.health)
        self.waiting: dict[str, deque[Exchange]] = {caller: deque() for caller in "abc"}
        self.refused = 0

    async def answer(self, caller: str, exchange: Exchange) -> None:
        route = self.directory.resolve("m")
        try:
            await self.hold.wait(route, "m", exchange, None, stream=False, caller=caller)
        except RequestError:
            self.refused += 1
            self.waiting[caller].remove(exchange)
            raise
        assert self.waiting[caller].popleft() is exchange, "a request of the same caller was passed by"
        self.directory.resolve("m").endpoints[0].count(1.0, 0)

    @property
    def num_waiting(self) -> int:
        return sum(map(len, self.waiting.values()))

    @rule(caller=st.sampled_from("abc"))
    def arrive(self, caller):
        was_full, refused = self.num_waiting == MOST_WAITING, self.refused
        own = len(self.waiting[caller])
        displaces = any(len(waiting) > own + 1 for waiting in self.waiting.values())
        exchange = Exchange(Client(), REQUEST)
        self.waiting[caller].append(exchange)
        exchange.begin(self.answer(caller, exchange))
        assert (self.refused > refused) == was_full
        if was_full and not displaces:
            assert exchange not in self.waiting[caller]
            assert b"503" in exchange.client.sent[0]
        else:
            assert self.waiting[caller][-1] is exchange

    @precondition(lambda self: self.num_waiting)
    @rule(data=st.data())
    def leave(self, data):
        one = data.draw(st.sampled_from([each for queue in self.waiting.values() for each in queue]))
        for queue in self.waiting.values():
            if one in queue:
                queue.remove(one)
        one.stop()

    @rule(is_up=st.booleans())
    def scale(self, is_up):
        addresses = (Address("127.0.0.1", 1),) if is_up else ()
        self.directory.put(Deployment(KEY, ("m",), addresses, vouched=True))

    @rule()
    def check(self):
        endpoints, before = self.directory.resolve("m").endpoints, self.num_waiting
        self.hold._check()
        released = before - self.num_waiting
        assert released == (min(before, FIRST_STEP) if endpoints else 0)

    @invariant()
    def the_count_is_that_of_the_requests_that_wait(self):
        assert self.hold.count == self.num_waiting <= MOST_WAITING
        assert self.hold.has_waiting(Target(KEY)) == (self.num_waiting > 0)


TestHold = HoldMachine.TestCase


def test_a_request_that_was_released_in_vain_goes_before_one_that_came_later():
    """Nothing waits while it is away."""
    health = Health()
    directory = Directory("least_load", on_added=health.add, on_removed=health.remove)
    directory.put(Deployment(KEY, ("m",), (Address("127.0.0.1", 1),), vouched=True))
    hold = Hold(HoldSettings(), directory, health)
    route = directory.resolve("m")
    released: list[str] = []

    async def wait(name: str, exchange: Exchange, *, refused: bool = False) -> None:
        held = await hold.wait(route, "m", exchange, None, stream=False)
        if refused:
            begin("second")
            await hold.wait(route, "m", exchange, held, stream=False)
        released.append(name)

    def begin(name: str, **outcome: bool) -> None:
        exchange = Exchange(Client(), REQUEST)
        exchange.begin(wait(name, exchange, **outcome))

    begin("first", refused=True)
    hold._check()
    hold._check()

    assert released == ["first", "second"]


@given(
    st.dictionaries(st.sampled_from(["", "a", "b"]), st.integers(0, 5), min_size=1),
    st.tuples(st.integers(0, 5), st.integers(0, 5)),
)
def test_a_model_and_its_adapters_take_turns_in_the_room_of_the_endpoints_that_they_can_use(waiting, rooms):
    """One of two endpoints has the adapter `a`, both have `b`."""
    health, addresses = Health(), (Address("127.0.0.1", 1), Address("127.0.0.1", 2))
    directory = Directory("least_load", on_added=health.add, on_removed=health.remove)
    adapters = (Adapter("a", addresses[:1]), Adapter("b", addresses))
    directory.put(Deployment(KEY, ("",), addresses, vouched=True, adapters=adapters))
    hold, released = Hold(HoldSettings(), directory, health), Counter()

    async def wait(name: str, exchange: Exchange) -> None:
        await hold.wait(directory.route(Target(KEY, name)), name, exchange, None, stream=False)
        released[name] += 1

    for name, count in waiting.items():
        for _ in range(count):
            exchange = Exchange(Client(), REQUEST)
            exchange.begin(wait(name, exchange))
    endpoints = directory.resolve("").endpoints
    for endpoint, room in zip(endpoints, rooms, strict=True):
        hold._windows[endpoint] = window = Window(0.0)
        window.limit = room

    hold._release(KEY)

    assert released["a"] <= rooms[0] and released.total() <= sum(rooms)
    assert released.total() + hold.count == sum(waiting.values())
    left = {name: count - released[name] for name, count in waiting.items()}
    unlimited = [name for name in ("", "b") if left.get(name)]
    if unlimited:
        assert released.total() == sum(rooms), "a request waits although there is room"
        assert all(released[name] <= released[other] + 1 for name in waiting for other in unlimited)
    if left.get("a"):
        assert released.total() >= rooms[0]
