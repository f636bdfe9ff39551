"""Requests for adapters: the replicas that get them, refusals, streams, keys, and what is recorded."""

import io
import json

import pytest
import yaml
from resumable_streams import WHOLE, Stream, read, refuse

from engine_server.contract.cluster.api import Key
from engine_server.router.callers.keys import digest_of
from engine_server.router.requests.access_log import RENDERERS, AccessLog
from engine_server.router.routing import selection
from engine_server.router.routing.directory import Adapter, Deployment
from engine_server.router.routing.endpoint import Address
from engine_server.router.routing.retry_budget import MINIMUM
from engine_server.router.server import Outputs

EJECTIONS = r"fairlead_router_ejections_total\{.*\}"


class Served:
    """An engine with some adapters: it answers with the adapter that it applied, and 404 for one that it lacks."""

    def __init__(self, *adapters: str) -> None:
        self.adapters = {*adapters}

    async def __call__(self, engine, request, writer) -> None:
        adapter = request.header("Fairlead-Adapter")
        status, body = 200, {"port": engine.port, "adapter": adapter}
        if adapter is not None and adapter not in self.adapters:
            status, body = 404, {"error": {"message": "not here", "code": "model_not_found"}}
        content = json.dumps(body).encode()
        writer.write(
            b"HTTP/1.1 %d x\r\nContent-Type: application/json\r\nFairlead-Model: weights\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (status, len(content), content)
        )


class AdapterSource:
    """A source of the deployment `m`, whose engines know it, with adapters that a test gives to some of them."""

    synced = True

    def __init__(self, *engines) -> None:
        self.addresses = tuple(Address.parse(engine.url) for engine in engines)
        self.adapters: tuple[Adapter, ...] = ()
        self.directory = None

    def watches(self):
        return ()

    async def run(self, directory) -> None:
        self.directory = directory
        self.put()

    def give(self, name: str, *engines, error: str = "") -> "AdapterSource":
        """Add an adapter that some of the engines have."""
        self.adapters += (Adapter(name, tuple(Address.parse(engine.url) for engine in engines), error=error),)
        return self

    def put(self) -> None:
        deployment = Deployment(
            Key("default", "m"),
            ("m",),
            self.addresses,
            vouched=True,
            known_to_engines=True,
            adapters=self.adapters,
        )
        self.directory.put(deployment)


async def answer_of(request) -> dict:
    async with request as response:
        assert response.status == 200
        return await response.json()


async def test_an_adapter_is_asked_of_the_replicas_that_have_it_under_each_of_its_names(
    start_engine, start_router
):
    engines = [await start_engine(Served(*names)) for names in ((), ("sql",), ("sql", "law"))]
    source = AdapterSource(*engines).give("sql", *engines[1:]).give("law", engines[2])
    router = await start_router(sources=[source], policy="round_robin")

    asked = {
        model: [await answer_of(router.chat(model)) for _ in range(6)]
        for model in ("m", "sql", "default/sql", "law")
    }

    assert {one["port"] for one in asked["m"]} == {engine.port for engine in engines}
    assert {one["port"] for one in asked["sql"]} == {engine.port for engine in engines[1:]}
    assert {one["port"] for one in asked["default/sql"]} == {engine.port for engine in engines[1:]}
    assert {one["port"] for one in asked["law"]} == {engines[2].port}
    applied = {model: {one["adapter"] for one in answers} for model, answers in asked.items()}
    assert applied == {"m": {None}, "sql": {"sql"}, "default/sql": {"sql"}, "law": {"law"}}
    assert {request.header("Fairlead-Deployment") for request in engines[2].received} == {"default/m"}


async def test_a_client_cannot_choose_an_adapter_by_a_header(start_engine, start_router):
    engine = await start_engine(Served("sql"))
    router = await start_router(sources=[AdapterSource(engine).give("sql", engine)])
    async with router.session.post(
        f"{router.url}/v1/completions", json={"model": "m"}, headers={"Fairlead-Adapter": "sql"}
    ) as response:
        assert (await response.json())["adapter"] is None


@pytest.mark.parametrize("name", ["a\r\nX-Injected: 1", "", " sql", "gr\u00fcn"])
async def test_a_name_that_no_header_can_carry_means_no_adapter(start_engine, start_router, name):
    engine = await start_engine(Served(name))
    router = await start_router(sources=[AdapterSource(engine).give(name, engine)])
    async with router.chat(name) as response:
        assert response.status == 404
    assert not engine.received


async def test_prompts_that_begin_alike_are_spread_by_adapter(start_engine, start_router):
    names = [f"adapter-{number}" for number in range(20)]
    engines = [await start_engine(Served(*names)) for _ in range(2)]
    source = AdapterSource(*engines)
    for name in names:
        source.give(name, *engines)
    router = await start_router(sources=[source], policy="prefix")

    ports = {
        name: {(await answer_of(router.chat(name, prompt="alike")))["port"] for _ in range(3)}
        for name in names
    }

    assert all(len(used) == 1 for used in ports.values())
    assert set().union(*ports.values()) == {engine.port for engine in engines}


# Refusals


async def test_a_replica_that_lacks_the_adapter_stays_in_use_and_is_passed_over_for_it(
    start_engine, start_router
):
    """There are more requests than retries in the budget."""
    lost, good = await start_engine(Served()), await start_engine(Served("sql"))
    router = await start_router(
        sources=[AdapterSource(lost, good).give("sql", lost, good)], policy="round_robin"
    )

    for _ in range(3 * MINIMUM):
        assert (await answer_of(router.chat("sql")))["port"] == good.port

    assert len(lost.received) == 1
    assert await router.metric(r'fairlead_router_retries_total\{reason="model_not_found"\}') == 1
    assert await router.metric(EJECTIONS) == 0
    assert {(await answer_of(router.chat()))["port"] for _ in range(4)} == {lost.port, good.port}


async def test_a_404_of_every_replica_is_an_answer(start_engine, start_router):
    engines = [await start_engine(Served()) for _ in range(2)]
    router = await start_router(sources=[AdapterSource(*engines).give("sql", *engines)])
    for _ in range(2):
        async with router.chat("sql") as response:
            assert response.status == 404
            assert (await response.json())["error"]["code"] == "model_not_found"
    assert len(engines[0].received) + len(engines[1].received) == 3  # the second time one was enough


async def test_a_replica_that_lacked_the_adapter_is_asked_again_once_its_deployment_has_changed(
    start_engine, start_router
):
    served = Served()
    late, good = await start_engine(served), await start_engine(Served("sql"))
    source = AdapterSource(late, good).give("sql", late, good)
    router = await start_router(sources=[source], policy="round_robin")
    assert {(await answer_of(router.chat("sql")))["port"] for _ in range(4)} == {good.port}

    served.adapters.add("sql")
    source.give("law").put()

    assert {(await answer_of(router.chat("sql")))["port"] for _ in range(4)} == {late.port, good.port}


async def test_retries_after_a_404_for_the_adapter_stay_within_the_budget(
    start_engine, start_router, monkeypatch
):
    monkeypatch.setattr(selection, "LACKING_SECONDS", 0.0)
    engines = [await start_engine(Served()) for _ in range(3)]
    router = await start_router(sources=[AdapterSource(*engines).give("sql", *engines)])
    requests = 4 * MINIMUM
    for _ in range(requests):
        async with router.chat("sql") as response:
            assert response.status == 404
    assert sum(len(engine.received) for engine in engines) == requests + MINIMUM


async def test_a_request_for_an_adapter_that_no_replica_can_serve_is_refused_immediately_and_the_log_says_why(
    start_engine, start_router, caplog
):
    engine = await start_engine(Served())
    router = await start_router(sources=[AdapterSource(engine).give("sql", error="its rank is 512")])

    async with router.chat("sql") as response:
        assert (response.status, response.headers["x-should-retry"]) == (503, "false")
        request_id = response.headers["X-Request-Id"]
        error = (await response.json())["error"]

    assert error["code"] == "no_replica"
    assert "'sql'" in error["message"] and "its rank is 512" not in error["message"]
    assert f"default/m sql: request {request_id} got no_replica: 'its rank is 512'" in caplog.messages
    assert not engine.received


# Streams


class AdapterStream(Stream):
    """A stream whose `Fairlead-Model` depends on the adapter. `fails` counts for each stream that begins."""

    def __init__(self, content: bytes = b"1") -> None:
        super().__init__()
        self.content = content

    async def __call__(self, engine, request, writer) -> None:
        adapter, fails = request.header("Fairlead-Adapter"), self.fails
        if request.header("Fairlead-Resume"):
            fails = ()
        await Stream(*fails, model=b"weights+%b" % (self.content if adapter else b""))(
            engine, request, writer
        )


async def test_a_stream_of_an_adapter_continues_on_a_replica_that_has_it_in_the_same_content(
    start_engine, start_router
):
    """All have answered for the model itself before, whose hash is another one."""
    first = AdapterStream()
    lacking, begun, other, same = [
        await start_engine(stream)
        for stream in (AdapterStream(), first, AdapterStream(b"2"), AdapterStream())
    ]
    source = AdapterSource(lacking, begun, other, same).give("sql", begun)
    router = await start_router(sources=[source], policy="round_robin")
    for _ in range(4):
        assert await read(router) == WHOLE
    assert await read(router, model="sql") == WHOLE
    first.fails = {3}
    source.adapters = ()
    source.give("sql", begun, other, same).put()
    for engine in (lacking, begun, other, same):
        engine.received.clear()

    streams = [await read(router, model="sql") for _ in range(12)]

    assert streams == [WHOLE] * 12
    assert not lacking.received
    at_other, at_same = (
        [r.header("Fairlead-Adapter") for r in engine.received if r.header("Fairlead-Resume")]
        for engine in (other, same)
    )
    assert {*at_same} == {"sql"} and len(at_same) > 1
    assert len(at_other) <= 1, "a replica with other content was asked again"


async def test_a_replica_that_lacked_the_adapter_may_continue_a_stream_once_it_has_it(
    start_engine, start_router, monkeypatch
):
    """Its 404 had the hash of the model without the adapter."""
    monkeypatch.setattr(selection, "LACKING_SECONDS", 0.0)
    begins = AdapterStream()

    async def behave(engine, request, writer) -> None:
        if request.header("Fairlead-Resume"):
            await AdapterStream()(engine, request, writer)
        elif begins.fails:
            writer.transport.abort()  # so that the other one begins each stream
        else:
            refuse(writer, 404, "model_not_found", b"weights+")

    late, other = await start_engine(behave), await start_engine(begins)
    source = AdapterSource(late, other).give("sql", late, other)
    router = await start_router(sources=[source], policy="round_robin")
    for _ in range(2):
        assert await read(router, model="sql") == WHOLE
    assert late.received
    begins.fails = {3}

    assert await read(router, model="sql") == WHOLE


# Names, keys and records


async def test_models_are_listed_with_the_parent_of_each_adapter(start_engine, start_router):
    engine = await start_engine()
    router = await start_router(sources=[AdapterSource(engine).give("sql", engine).give("law", error="no")])
    async with router.get("/v1/models") as response:
        cards = {card["id"]: card["parent"] for card in (await response.json())["data"]}
    assert cards == {"law": "m", "m": None, "sql": "m"}
    for name in ("sql", "default/sql", "default%2Fsql"):
        async with router.get(f"/v1/models/{name}") as response:
            assert (response.status, (await response.json())["parent"]) == (200, "m")
    async with router.chat("tax") as response:
        assert "law, m, sql" in (await response.json())["error"]["message"]


@pytest.mark.parametrize(
    ("allowed", "usable"),
    [
        (["m"], ["m"]),
        (["sql"], ["sql", "default/sql"]),
        (["default/sql", "m"], ["m", "sql", "default/sql"]),
        (["default/*"], ["m", "sql", "default/sql", "law"]),
    ],
)
async def test_a_key_allows_an_adapter_by_its_own_name(start_engine, start_router, tmp_path, allowed, usable):
    engine = await start_engine(Served("sql", "law"))
    file = tmp_path / "keys.yaml"
    file.write_text(yaml.safe_dump([{"name": "a", "sha256": digest_of(b"key").hex(), "models": allowed}]))
    source = AdapterSource(engine).give("sql", engine).give("law", engine)
    router = await start_router(sources=[source], keys_file=file)
    router.session.headers["Authorization"] = "Bearer key"

    statuses = {}
    for model in ("m", "sql", "default/sql", "law"):
        async with router.chat(model) as response:
            statuses[model] = response.status
    async with router.get("/v1/models") as response:
        listed = {card["id"] for card in (await response.json())["data"]}

    assert statuses == {model: 200 if model in usable else 403 for model in statuses}
    assert listed == {model for model in usable if "/" not in model}


async def test_the_access_log_and_the_metrics_name_the_adapter(start_engine, start_router):
    engine, output = await start_engine(Served("sql")), io.StringIO()
    log = AccessLog(output, RENDERERS["json"])
    source = AdapterSource(engine).give("sql", engine)
    router = await start_router(sources=[source], outputs=Outputs(access_log=log))
    for model in ("m", "sql", "default/sql", "nonsense"):
        async with router.chat(model) as response:
            await response.read()
    log.flush()

    lines = [json.loads(line) for line in output.getvalue().splitlines()]
    assert [(one.get("model"), one.get("adapter")) for one in lines] == [
        ("m", None),
        ("sql", "sql"),
        ("default/sql", "sql"),
        (None, None),
    ]
    counted = r'fairlead_router_adapter_requests_total\{adapter="%s",code="200",model="default/m"\}'
    assert await router.metric(counted % "sql") == 2
    assert await router.metric(r"fairlead_router_adapter_requests_total\{.*\}") == 2
    assert await router.metric(r'fairlead_router_requests_total\{code="200",model="default/m"\}') == 3
    endpoints = r'fairlead_router_adapter_endpoints\{adapter="sql",model="default/m"\}'
    assert await router.metric(endpoints) == 1

    source.adapters = ()
    source.put()
    assert await router.metric(r"fairlead_router_adapter_requests_total\{.*\}") == 0
