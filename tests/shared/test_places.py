"""Places of connections: none is given twice, and those that wait for their clients make room in a fair order."""

from hypothesis import given
from hypothesis import strategies as st

from engine_server.shared.places import Occupant, Places, Stage


class Client(Occupant):
    def __init__(self, places: Places, sender: str = "a") -> None:
        self.places = places
        self.sender = sender
        self.closed = False
        places.take(self)

    def give_way(self) -> None:
        assert not self.closed
        self.closed = True


def test_the_longest_idle_connection_makes_room() -> None:
    places = Places(3)
    first, second, busy = (Client(places) for _ in range(3))
    for client in (first, second, busy):
        places.note_waiting(client, Stage.IDLE)
    places.note_busy(first)
    places.note_waiting(first, Stage.IDLE)
    places.note_busy(busy)
    assert places.full
    waiting: list[str] = []
    places.wait(lambda: waiting.append("a place"))
    assert second.closed and not first.closed and not waiting
    places.free(second)
    assert waiting == ["a place"] and not places.full


def test_the_next_connection_that_becomes_idle_makes_room_if_none_is() -> None:
    places = Places(1)
    client = Client(places)
    waiting: list[str] = []
    places.wait(lambda: waiting.append("a place"))
    assert not client.closed
    places.note_waiting(client, Stage.IDLE)
    assert client.closed


def test_a_connection_that_ends_makes_room_without_another_being_closed() -> None:
    places = Places(2)
    ends, stays = Client(places), Client(places)
    waiting: list[str] = []
    places.wait(lambda: waiting.append("a place"))
    places.free(ends)
    places.note_waiting(stays, Stage.IDLE)
    assert waiting == ["a place"] and not stays.closed


def test_no_second_connection_is_closed_for_one_that_waits() -> None:
    places = Places(2)
    older, newer = Client(places), Client(places)
    places.note_waiting(older, Stage.IDLE)
    waiting: list[str] = []
    places.wait(lambda: waiting.append("a place"))
    places.note_waiting(newer, Stage.IDLE)
    assert older.closed and not newer.closed
    places.free(newer)  # by itself
    assert waiting == ["a place"]
    next_one = Client(places)
    places.wait(lambda: waiting.append("another"))
    places.note_waiting(next_one, Stage.IDLE)
    assert not next_one.closed, "the place of the older one is about to be free"
    places.free(older)
    assert waiting == ["a place", "another"]


def test_a_new_connection_has_time_for_its_first_bytes() -> None:
    places = Places(1)
    new = Client(places)
    places.wait(lambda: None)
    assert not new.closed
    places.end_grace(new)
    assert new.closed


def test_the_time_for_first_bytes_is_of_no_importance_after_these() -> None:
    places = Places(1)
    client = Client(places)
    places.note_busy(client)
    places.end_grace(client)
    places.wait(lambda: None)
    assert not client.closed


def test_the_sender_of_most_connections_makes_room_with_idle_ones_before_unfinished_requests() -> None:
    places = Places(6)
    small = Client(places, "small")
    body, head, idle, busy = (Client(places, "large") for _ in range(4))
    other = Client(places, "other")
    for client, stage in (
        (small, Stage.IDLE),
        (body, Stage.BODY),
        (head, Stage.HEAD),
        (idle, Stage.IDLE),
        (other, Stage.IDLE),
    ):
        places.note_waiting(client, stage)
    places.note_busy(busy)
    closed: list[Client] = []
    for _ in range(5):
        places.wait(lambda: None)
        (victim,) = (one for one in (small, body, head, idle, other) if one.closed and one not in closed)
        closed.append(victim)
        places.free(victim)
        places.take(victim)
        places.note_busy(victim)
    # Two of the large sender are closed; then each sender has one.
    assert closed[:2] == [idle, head] and set(closed[2:]) == {small, body, other}
    assert not busy.closed


def test_a_connection_counts_for_the_sender_that_it_has_when_it_begins_to_wait() -> None:
    """A proxy's connection has the address that the proxy reported last."""
    places = Places(3)
    lone, first, second = Client(places, "lone"), Client(places, "proxy"), Client(places, "proxy")
    first.sender = second.sender = "behind"
    lone.sender = "behind"
    for client in (first, second):
        places.note_waiting(client, Stage.IDLE)
    lone.sender = "lone"
    places.note_waiting(lone, Stage.IDLE)
    first.sender = "elsewhere"  # counts from the next wait on
    places.wait(lambda: None)
    assert first.closed and not lone.closed


@given(st.integers(1, 4), st.lists(st.tuples(st.sampled_from("anhbf"), st.integers(0, 3)), max_size=60))
def test_whoever_waits_gets_a_place_as_soon_as_none_is_busy(
    limit: int, events: list[tuple[str, int]]
) -> None:
    """Clients arrive (a), begin to wait (n, h) or are busy (b), and leave (f), in any order."""
    places = Places(limit)
    clients: list[Client] = []
    served, arrived = 0, 0

    def serve() -> None:
        nonlocal served
        while served < arrived and not places.full:
            served += 1
            clients.append(Client(places, str(served % 3)))
            places.note_waiting(clients[-1], Stage.IDLE)
        if served < arrived:
            places.wait(serve)

    def end_closed() -> None:
        while closed := next((client for client in clients if client.closed), None):
            clients.remove(closed)
            places.free(closed)

    for event, number in events:
        if event == "a":
            arrived += 1
            serve()
        elif clients:
            client = clients[number % len(clients)]
            if event == "n":
                places.note_waiting(client, Stage.IDLE)
            elif event == "h":
                places.note_waiting(client, Stage.HEAD)
            elif event == "b":
                places.note_busy(client)
            else:
                clients.remove(client)
                places.free(client)
        end_closed()
        assert len(clients) <= limit
    for client in [*clients]:
        if client in clients:
            places.note_waiting(client, Stage.IDLE)
            end_closed()
    assert served == arrived
