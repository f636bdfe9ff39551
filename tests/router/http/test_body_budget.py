"""The budget of all bodies: never exceeded, and claims are granted in order."""

from hypothesis import given
from hypothesis import strategies as st

from engine_server.router.http.body_budget import BodyBudget

LIMIT = 100


class Connection:
    """Holds what it was granted, and releases all of it at once where it is told to."""

    def __init__(self, budget: BodyBudget, size: int, log: list["Connection"], *, brief: bool) -> None:
        self.budget, self.size, self.log, self.brief = budget, size, log, brief
        self.granted = False
        if budget.claim(size, self):
            self.admit()

    def admit(self) -> None:
        self.granted = True
        self.log.append(self)
        if self.brief:
            self.end()

    def end(self) -> None:
        if self.granted:
            self.granted = False
            self.budget.release(self.size)
        elif self not in self.log:
            self.log.append(self)
            self.budget.withdraw(self)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("claim"), st.integers(1, LIMIT), st.booleans()),
        st.tuples(st.just("end"), st.integers(0, 50), st.booleans()),
    ),
    max_size=60,
)


@given(steps)
def test_the_limit_is_never_exceeded_and_all_claims_are_granted_in_order(taken):
    budget = BodyBudget(LIMIT)
    connections: list[Connection] = []
    log: list[Connection] = []
    withdrawn: set[int] = set()
    for step, number, brief in taken:
        if step == "claim":
            connections.append(Connection(budget, number, log, brief=brief))
        elif connections:
            connection = connections[number % len(connections)]
            if connection not in log:
                withdrawn.add(id(connection))
            connection.end()
        assert budget.used == sum(c.size for c in connections if c.granted) <= LIMIT
    while any(connection.granted for connection in connections):
        next(connection for connection in connections if connection.granted).end()
    assert budget.used == 0
    assert [c for c in log if id(c) not in withdrawn] == [c for c in connections if id(c) not in withdrawn]


def test_a_claim_over_the_whole_limit_is_granted_once_nothing_else_is_held():
    budget = BodyBudget(LIMIT)
    log: list[Connection] = []
    first, large = (Connection(budget, size, log, brief=False) for size in (1, LIMIT + 1))
    assert log == [first]
    first.end()
    assert log == [first, large]


def test_thousands_of_waiting_claims_that_end_at_once_are_granted_without_recursion():
    budget = BodyBudget(LIMIT)
    log: list[Connection] = []
    first = Connection(budget, LIMIT, log, brief=False)
    waiting = [Connection(budget, 1, log, brief=True) for _ in range(5_000)]
    first.end()
    assert log == [first, *waiting] and budget.used == 0
