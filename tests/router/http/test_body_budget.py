"""The budget of all bodies: never exceeded, shared among senders, and granted in each sender's order."""

from hypothesis import given
from hypothesis import strategies as st

from engine_server.router.http.body_budget import RESERVED_PART, SMALL_BYTES, BodyBudget

LIMIT = 16 * SMALL_BYTES


class Connection:
    """Holds what it was granted, and releases all of it at once where it is told to."""

    def __init__(
        self,
        budget: BodyBudget,
        size: int,
        log: list["Connection"],
        *,
        owner: str = "a",
        brief: bool = False,
    ) -> None:
        self.budget, self.size, self.log, self.owner, self.brief = budget, size, log, owner, brief
        self.granted = self.forgotten = False
        if budget.claim(size, size, self):
            self.admit()

    def admit(self) -> None:
        self.granted = True
        self.log.append(self)
        if self.brief:
            self.end()

    @property
    def is_small(self) -> bool:
        return self.size <= SMALL_BYTES

    def keep(self) -> None:
        self.budget.keep(self, self.size)

    def forget_body(self) -> None:
        self.forgotten = True
        self.budget.unkeep(self)
        self.end()

    def end(self) -> None:
        if self.granted:
            self.granted = False
            self.budget.release(self.owner, self.size)
        elif self not in self.log:
            self.log.append(self)
            self.budget.withdraw(self)


owners = st.sampled_from("abc")
steps = st.lists(
    st.one_of(
        st.tuples(st.just("claim"), st.integers(1, LIMIT // 2), owners, st.booleans()),
        st.tuples(st.sampled_from(["end", "keep"]), st.integers(0, 50), owners, st.booleans()),
    ),
    max_size=60,
)


@given(steps)
def test_the_limit_is_never_exceeded_and_the_claims_of_each_sender_are_granted_in_order(taken):
    budget = BodyBudget(LIMIT)
    connections: list[Connection] = []
    log: list[Connection] = []
    withdrawn: set[int] = set()
    for step, number, owner, brief in taken:
        if step == "claim":
            connections.append(Connection(budget, number, log, owner=owner, brief=brief))
        elif connections:
            connection = connections[number % len(connections)]
            if step == "keep":
                if connection.granted:
                    connection.keep()
                continue
            if connection not in log:
                withdrawn.add(id(connection))
            budget.unkeep(connection)
            connection.end()
        assert budget.used == sum(c.size for c in connections if c.granted) <= LIMIT
    while any(connection.granted for connection in connections):
        next(connection for connection in connections if connection.granted).end()
    assert budget.used == 0
    for queue in {(c.owner, c.is_small) for c in connections}:
        own = [c for c in connections if (c.owner, c.is_small) == queue and id(c) not in withdrawn]
        assert [c for c in log if c in own] == own


def fill(budget: BodyBudget, owner: str, size: int) -> list[Connection]:
    """Return the connections of an owner that takes all that it gets, the last of which waits."""
    log: list[Connection] = []
    connections = [Connection(budget, size, log, owner=owner)]
    while connections[-1].granted:
        connections.append(Connection(budget, size, log, owner=owner))
    return connections


def test_the_largest_body_finds_room_in_an_empty_budget():
    budget = BodyBudget(LIMIT)
    assert Connection(budget, budget.largest_body, []).granted


def test_a_newcomer_finds_room_beside_senders_that_take_all_they_get():
    budget = BodyBudget(LIMIT)
    for owner in "abc":
        fill(budget, owner, SMALL_BYTES + 1)
    assert Connection(budget, 1, [], owner="newcomer").granted
    assert budget.used < LIMIT


def test_small_bodies_have_a_part_of_the_budget_to_themselves():
    budget = BodyBudget(LIMIT)
    large = fill(budget, "a", SMALL_BYTES + 1)
    small = Connection(budget, SMALL_BYTES // 2, [], owner="b")
    assert not large[-1].granted and small.granted
    assert LIMIT - budget.used > LIMIT // RESERVED_PART - SMALL_BYTES


def test_claims_of_one_sender_do_not_wait_for_those_of_another():
    budget = BodyBudget(LIMIT)
    waiting = fill(budget, "a", 2 * SMALL_BYTES)[-1]
    assert Connection(budget, SMALL_BYTES, [], owner="b").granted
    assert not waiting.granted


def test_the_largest_kept_bodies_are_forgotten_until_there_is_room():
    budget = BodyBudget(LIMIT)
    sizes = (1, 4, 3, 2)
    kept = [Connection(budget, n * SMALL_BYTES, []) for n in sizes]
    for connection in kept:
        connection.keep()
    newcomer = Connection(budget, 5 * SMALL_BYTES, [], owner="b")
    assert newcomer.granted
    assert [connection.forgotten for connection in kept] == [False, True, False, False]
    assert budget.forgotten == 1


def test_kept_bodies_of_senders_that_hold_less_are_not_forgotten():
    budget = BodyBudget(LIMIT)
    modest = Connection(budget, SMALL_BYTES, [], owner="b")
    modest.keep()
    *_, waiting = fill(budget, "a", SMALL_BYTES)
    assert not modest.forgotten and not waiting.granted


def test_a_body_that_becomes_kept_makes_room_for_a_claim_that_waits():
    budget = BodyBudget(LIMIT)
    first, *_, waiting = fill(budget, "a", 2 * SMALL_BYTES)
    first.keep()
    assert first.forgotten and waiting.granted


def test_thousands_of_waiting_claims_that_end_at_once_are_granted_without_recursion():
    budget = BodyBudget(LIMIT)
    log: list[Connection] = []
    taken = fill(budget, "a", SMALL_BYTES)[:-1]
    waiting = [Connection(budget, 1, log, brief=True) for _ in range(5_000)]
    for connection in taken:
        connection.end()
    assert log == waiting
