"""The directory: one content, whatever the order of puts and removals."""

from hypothesis import given
from hypothesis import strategies as st

from engine_server.contract.cluster.api import Key
from engine_server.contract.wire.engine_report import EngineReport
from engine_server.router.obstacle import Obstacle
from engine_server.router.routing.directory import Adapter, Deployment, Directory, Target
from engine_server.router.routing.endpoint import Address, Endpoint

addresses = st.lists(st.builds(Address, st.just("h"), st.integers(1, 6)), max_size=3).map(tuple)


deployments = st.builds(
    Deployment,
    st.builds(Key, st.sampled_from("xy"), st.sampled_from("abc")),
    st.lists(st.sampled_from(["a", "b", "s", "t", "x/a"]), min_size=1, max_size=2, unique=True).map(tuple),
    addresses,
    st.sampled_from([1.0, 2.0]),
    adapters=st.lists(
        st.builds(Adapter, st.sampled_from(["a", "s", "u", "x/a"]), addresses),
        max_size=2,
        unique_by=lambda adapter: adapter.name,
    ).map(tuple),
)


class Recorder:
    """A directory, and the endpoints that it has reported as added and not as removed."""

    def __init__(self) -> None:
        self.known: set[Endpoint] = set()
        self.directory = Directory(
            "least_load", on_added=lambda endpoint, _: self.known.add(endpoint), on_removed=self.known.discard
        )

    def view(self) -> object:
        names = ["a", "b", "c", "s", "t", "u", "x/a", "x/b", "x/c", "x/s", "x/u", "y/a", "y/b", "y/c", "y/t"]
        routes = {name: self.directory.resolve(name) for name in names}
        return {name: route and (route.target, route.deployment) for name, route in routes.items()}, {
            name: route.target for name, route in self.directory.models().items()
        }


@given(st.lists(deployments, max_size=8), st.data())
def test_content_does_not_depend_on_the_order_of_changes(puts, data):
    final = {one.key: one for one in puts if data.draw(st.booleans())}
    removed = [one for one in puts if one.key not in final]
    direct, indirect = Recorder(), Recorder()
    for one in final.values():
        direct.directory.put(one)
    for one in data.draw(st.permutations([*puts, *removed])):
        indirect.directory.put(one)
        indirect.directory.resolve("a")
    for one in data.draw(st.permutations([*final.values()])):
        indirect.directory.put(one)
    for one in data.draw(st.permutations(removed)):
        indirect.directory.remove(one.key)
    assert indirect.view() == direct.view()
    expected = {address for one in final.values() for address in one.addresses}
    assert {endpoint.address for endpoint in indirect.known} == expected


@given(st.lists(deployments, min_size=1, max_size=8, unique_by=lambda one: one.key))
def test_the_oldest_holder_keeps_a_served_name_unless_its_namespace_claims_it(puts):
    recorder = Recorder()
    for one in puts:
        recorder.directory.put(one)
    in_namespaces = {
        f"{one.key.namespace}/{name}"
        for one in puts
        for name in (one.key.name, *one.served_names, *(adapter.name for adapter in one.adapters))
    }
    names = {
        name for one in puts for name in (*one.served_names, *(adapter.name for adapter in one.adapters))
    }
    for name in names - in_namespaces:
        adapters = {one.key: [adapter.name for adapter in one.adapters] for one in puts}
        asking = [one for one in puts if name in (*one.served_names, *adapters[one.key])]
        oldest = min(asking, key=lambda one: (one.created, one.key))
        route = recorder.directory.resolve(name)
        assert route.deployment == oldest
        assert (route.adapter is None) == (name in oldest.served_names)


@given(st.lists(deployments, min_size=1, max_size=8, unique_by=lambda one: one.key))
def test_an_adapter_has_those_endpoints_of_its_deployment_that_its_source_lists(puts):
    recorder = Recorder()
    for one in puts:
        recorder.directory.put(one)
    for one in puts:
        for adapter in one.adapters:
            route = recorder.directory.route(Target(one.key, adapter.name))
            assert {e.address for e in route.endpoints} == {*adapter.addresses} & {*one.addresses}
            assert all(endpoint in route.replicas for endpoint in route.endpoints)
            assert route.replicas == recorder.directory.route(Target(one.key)).endpoints


def test_lists_an_adapter_by_its_namespace_if_an_older_one_has_its_name():
    recorder = Recorder()
    for namespace, name, created in (("x", "a", 1.0), ("y", "b", 2.0), ("y", "c", 3.0)):
        one = Deployment(Key(namespace, name), (name,), created=created, adapters=(Adapter("sql"),))
        recorder.directory.put(one)
    models = recorder.directory.models()
    assert list(models) == ["a", "b", "c", "sql", "y/sql"]
    assert models["sql"].target == Target(Key("x", "a"), "sql")
    assert models["y/sql"].target == Target(Key("y", "b"), "sql")


def test_what_engines_reported_of_an_adapter_is_forgotten_when_it_changes():
    recorder, address = Recorder(), Address("h", 1)
    adapters = Adapter("a", (address,), "1"), Adapter("b", (address,), "2")
    for changed in (adapters, (adapters[0], Adapter("b", (address,), "3"))):
        recorder.directory.put(Deployment(Key("x", "m"), ("m",), (address,), adapters=changed))
        (endpoint,) = recorder.known
        if changed is adapters:
            for name in ("", "a", "b"):
                endpoint.record_report(EngineReport(b"hash"), name)
    assert endpoint.fingerprints.keys() == {"", "a"}


def deployment(
    namespace: str, name: str, *served: str, created: float = 0.0, at: tuple[str, ...] = ()
) -> Deployment:
    return Deployment(Key(namespace, name), served, tuple(Address.parse(url) for url in at), created)


def test_namespace_and_name_come_before_a_served_name():
    recorder = Recorder()
    for one in (
        deployment("x", "a", "m", created=1.0),
        deployment("y", "b", "x/a", "m", created=2.0),
        deployment("y", "c", "b", created=3.0),
    ):
        recorder.directory.put(one)

    def found(name: str) -> str:
        route = recorder.directory.resolve(name)
        return route and "/".join(route.deployment.key)

    assert found("m") == "x/a"  # contested: the older
    assert found("y/m") == "y/b"  # the younger one's by namespace and served name
    assert found("x/a") == "x/a"  # namespace/name, not y/b's served name
    assert found("y/b") == "y/b"  # namespace/name, not y/c's namespace/served name
    assert found("b") == "y/c"
    assert found("a") is None
    assert list(recorder.directory.models()) == ["b", "m", "y/b"]


def test_a_served_name_cannot_take_the_name_of_a_deployment_in_another_namespace():
    recorder = Recorder()
    recorder.directory.put(deployment("thief", "a", "victim/b", "victim/chat", created=1.0))
    assert recorder.directory.resolve("victim/b").deployment.key == Key("thief", "a")

    recorder.directory.put(deployment("victim", "b", "chat", created=2.0))

    assert recorder.directory.resolve("victim/b").deployment.key == Key("victim", "b")
    assert recorder.directory.resolve("victim/chat").deployment.key == Key("victim", "b")


def test_lists_a_deployment_without_names_of_its_own_as_namespace_and_name():
    recorder = Recorder()
    recorder.directory.put(deployment("x", "a", "m", created=1.0))
    recorder.directory.put(deployment("y", "b", "m", created=2.0))
    assert list(recorder.directory.models()) == ["m", "y/b"]
    recorder.directory.remove(Key("x", "a"))
    assert list(recorder.directory.models()) == ["m"]


def test_an_endpoint_is_the_same_object_after_its_deployment_changes():
    """Its requests in flight and its ejection belong to it, not to one version of its deployment."""
    recorder = Recorder()
    recorder.directory.put(deployment("x", "a", "m", at=("http://h:1",)))
    (endpoint,) = recorder.directory.resolve("m").endpoints
    recorder.directory.put(deployment("x", "a", "m", at=("http://h:2", "http://h:1")))
    assert recorder.directory.resolve("m").endpoints[1] is endpoint
    assert {one.address.port for one in recorder.known} == {1, 2}


def test_counts_of_a_ring_start_again_with_its_endpoints_and_not_with_other_changes():
    directory = Recorder().directory
    one, two = Address("h", 1), Address("h", 2)
    directory.put(
        Deployment(Key("x", "m"), ("m",), (one,), policy="prefix", adapters=(Adapter("a", (one,)),))
    )
    directory.resolve("a").ring_picks[True] += 1

    directory.put(Deployment(Key("x", "m"), ("m",), (one,), policy="prefix", obstacle=Obstacle("Changed")))
    kept = directory.resolve("m").ring_picks[True]
    directory.put(Deployment(Key("x", "m"), ("m",), (one, two), policy="prefix"))

    assert (kept, directory.resolve("m").ring_picks[True]) == (1, 0)
