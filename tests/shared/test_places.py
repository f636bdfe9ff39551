"""Places of connections: none is given twice, and idle connections make room in the order in which they became idle."""

from hypothesis import given
from hypothesis import strategies as st

from engine_server.shared.places import Occupant, Places


class Client(Occupant):
    def __init__(self, places: Places) -> None:
        self.places = places
        self.closed = False
        places.take(self)

    def close_idle(self) -> None:
        assert not self.closed
        self.closed = True


def test_the_longest_idle_connection_makes_room() -> None:
    places = Places(3)
    first, second, busy = (Client(places) for _ in range(3))
    for client in (first, second, busy):
        places.note_idle(client)
    places.note_busy(first)
    places.note_idle(first)
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
    places.note_idle(client)
    assert client.closed


def test_a_connection_that_ends_makes_room_without_another_being_closed() -> None:
    places = Places(2)
    ends, stays = Client(places), Client(places)
    waiting: list[str] = []
    places.wait(lambda: waiting.append("a place"))
    places.free(ends)
    places.note_idle(stays)
    assert waiting == ["a place"] and not stays.closed


@given(st.integers(1, 4), st.lists(st.tuples(st.sampled_from("anbf"), st.integers(0, 3)), max_size=60))
def test_whoever_waits_gets_a_place_as_soon_as_none_is_busy(
    limit: int, events: list[tuple[str, int]]
) -> None:
    """Clients arrive (a), become idle (n) or busy (b), and leave (f), in any order."""
    places = Places(limit)
    clients: list[Client] = []
    served, arrived = 0, 0

    def serve() -> None:
        nonlocal served
        while served < arrived and not places.full:
            served += 1
            clients.append(Client(places))
            places.note_idle(clients[-1])
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
                places.note_idle(client)
            elif event == "b":
                places.note_busy(client)
            else:
                clients.remove(client)
                places.free(client)
        end_closed()
        assert len(clients) <= limit
    for client in [*clients]:
        if client in clients:
            places.note_idle(client)
            end_closed()
    assert served == arrived
