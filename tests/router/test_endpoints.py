"""The directory: whatever the order of puts and removes, one view."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_server.contract.api import Key
from engine_server.router.endpoints import Address, Deployment, Directory, Endpoint

addresses = st.lists(st.builds(Address, st.just("h"), st.integers(1, 6)), max_size=3).map(tuple)
deployments = st.builds(
    Deployment,
    st.builds(Key, st.sampled_from("xy"), st.sampled_from("abc")),
    st.lists(st.sampled_from(["a", "b", "s", "t", "x/a"]), min_size=1, max_size=2, unique=True).map(tuple),
    addresses,
    st.sampled_from([1.0, 2.0]),
)


class Notes:
    """A directory, and which endpoints it has told of and not taken back."""

    def __init__(self) -> None:
        self.known: set[Endpoint] = set()
        self.directory = Directory("least_load", on_unproven=self.known.add, on_gone=self.known.discard)

    def view(self) -> object:
        names = ["a", "b", "c", "s", "t", "x/a", "x/b", "x/c", "x/s", "y/a", "y/b", "y/c", "y/t"]
        routes = {name: self.directory.resolve(name) for name in names}
        return {name: route and route.deployment for name, route in routes.items()}, {
            name: route.deployment for name, route in self.directory.models().items()
        }


@given(st.lists(deployments, max_size=8), st.data())
def test_the_order_of_changes_never_matters(told, data):
    final = {one.key: one for one in told if data.draw(st.booleans())}
    gone = [one for one in told if one.key not in final]
    straight, winding = Notes(), Notes()
    for one in final.values():
        straight.directory.put(one)
    for one in data.draw(st.permutations([*told, *gone])):
        winding.directory.put(one)
        winding.directory.resolve("a")
    for one in data.draw(st.permutations([*final.values()])):
        winding.directory.put(one)
    for one in data.draw(st.permutations(gone)):
        winding.directory.remove(one.key)
    assert winding.view() == straight.view()
    wanted = {address for one in final.values() for address in one.addresses}
    assert {endpoint.address for endpoint in winding.known} == wanted


@given(st.lists(deployments, min_size=1, max_size=8, unique_by=lambda one: one.key))
def test_the_oldest_holder_keeps_a_name(told):
    notes = Notes()
    for one in told:
        notes.directory.put(one)
    for name in {name for one in told for name in one.served_names}:
        oldest = min((o for o in told if name in o.served_names), key=lambda o: (o.created, o.key))
        assert notes.directory.resolve(name).deployment == oldest


def deployment(
    namespace: str, name: str, *served: str, created: float = 0.0, at: tuple[str, ...] = ()
) -> Deployment:
    return Deployment(Key(namespace, name), served, tuple(Address.parse(url) for url in at), created)


def test_a_served_name_comes_before_namespace_and_name():
    notes = Notes()
    for one in (
        deployment("x", "a", "m", created=1.0),
        deployment("y", "b", "x/a", "m", created=2.0),
        deployment("y", "c", "b", created=3.0),
    ):
        notes.directory.put(one)

    def found(name: str) -> str:
        route = notes.directory.resolve(name)
        return route and "/".join(route.deployment.key)

    assert found("m") == "x/a"  # contested: the older
    assert found("y/m") == "y/b"  # the younger one's by namespace and served name
    assert found("x/a") == "y/b"  # an exact served name
    assert found("y/b") == "y/b"  # namespace/name, not y/c's namespace/served name
    assert found("b") == "y/c"
    assert found("a") is None
    assert list(notes.directory.models()) == ["b", "m", "x/a"]


def test_a_deployment_that_lost_all_its_names_is_listed_in_full():
    notes = Notes()
    notes.directory.put(deployment("x", "a", "m", created=1.0))
    notes.directory.put(deployment("y", "b", "m", created=2.0))
    assert list(notes.directory.models()) == ["m", "y/b"]
    notes.directory.remove(Key("x", "a"))
    assert list(notes.directory.models()) == ["m"]


def test_an_endpoint_outlives_changes_around_it():
    """Its count of requests under way, and its ejection, belong to it and not to a version of its deployment."""
    notes = Notes()
    notes.directory.put(deployment("x", "a", "m", at=("http://h:1",)))
    (endpoint,) = notes.directory.resolve("m").endpoints
    endpoint.mark(live=True)
    endpoint.in_flight = 3
    notes.directory.put(deployment("x", "a", "m", at=("http://h:2", "http://h:1")))
    route = notes.directory.resolve("m")
    assert route.endpoints[1] is endpoint and route.live == (endpoint,)
    endpoint.mark(live=False)
    assert route.live == ()


@pytest.mark.parametrize(
    "url", ["https://h:1", "h:1", "http://", "http://h:1/v1", "http://h:x", "http://h:1?a=b"]
)
def test_what_is_not_an_endpoint(url):
    with pytest.raises(ValueError):
        Address.parse(url)


@pytest.mark.parametrize(
    ("url", "parsed", "shown"),
    [
        ("http://h:1/", ("h", 1), "http://h:1"),
        ("http://[::1]:8", ("::1", 8), "http://[::1]:8"),
        ("http://h", ("h", 80), "http://h:80"),
    ],
)
def test_addresses(url, parsed, shown):
    assert Address.parse(url) == parsed and str(Address.parse(url)) == shown
