"""Refusals that no other replica makes up for: the caller gets the router's words, and the log those of the engine."""

import json
import logging

import pytest
from resumable_streams import Stream
from router_keys import KeysFile, ask

from engine_server.contract.cluster.api import Key
from engine_server.router.requests.outcome import MAX_REFUSAL_BYTES
from engine_server.router.routing.directory import Adapter, Deployment
from engine_server.router.routing.endpoint import Address

SECRET = "the prompt of somebody else"


def refuse(status: int, code: str | None = None, *, message: str = SECRET, head: str = ""):
    """Return the behavior of an engine that answers with an error whose message quotes somebody."""
    body = json.dumps({"error": {"message": message} | ({"code": code} if code else {})}).encode()

    async def behave(engine, request, writer):
        lines = f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        writer.write(f"HTTP/1.1 {status} No\r\n{lines}\r\n".encode() + body)

    return behave


@pytest.mark.parametrize(
    ("status", "code", "answered"),
    [
        (503, "engine_dead", (503, "no_replica", "No replica of 'm' is ready")),
        (503, "draining", (503, "no_replica", "No replica of 'm' is ready")),
        (503, "loading", (503, "no_replica", "No replica of 'm' is ready")),
        (503, None, (503, "no_replica", "No replica of 'm' is ready")),
        (503, "queue_full", (503, "saturated", "All replicas of 'm' are full")),
        (503, "aborted", (503, "aborted", "The replica of 'm' answered with status 503")),
        (500, "internal_error", (500, "internal_error", "The replica of 'm' answered with status 500")),
        (502, None, (502, "no_answer", "The replica of 'm' answered with status 502")),
    ],
)
async def test_answers_in_its_own_words_and_logs_those_of_the_engine(
    start_engine, start_router, caplog, status, code, answered
):
    engine = await start_engine(refuse(status, code, message=f"{SECRET}\nINFO: x", head="Retry-After: 7\r\n"))
    router = await start_router({"m": [engine]})

    with caplog.at_level(logging.WARNING, "engine_server.router.requests"):
        async with router.chat() as response:
            text = await response.text()

    error = json.loads(text)["error"]
    assert (response.status, error["code"], error["message"]) == answered
    assert response.headers.get("Retry-After") == ("7" if status == 503 else None)
    assert SECRET not in text
    logged = [record.getMessage() for record in caplog.records if SECRET in record.getMessage()]
    assert len(logged) == (code != "queue_full")
    assert not any("\n" in line for line in logged)


async def test_answers_a_long_refusal_in_its_own_words(start_engine, start_router):
    engine = await start_engine(refuse(503, "engine_dead", message="x" * MAX_REFUSAL_BYTES))
    router = await start_router({"m": [engine]})
    async with router.chat() as response:
        text = await response.text()
    assert response.status == 503 and "xxx" not in text and json.loads(text)["error"]["code"] == "no_replica"


async def test_ends_a_stream_without_an_event_in_its_own_words(start_engine, start_router):
    """The client has its head."""
    engines: list = []
    breaks = Stream(0)
    refuses = refuse(500, "internal_error")

    async def behave(engine, request, writer):
        first = sum(len(one.received) for one in engines) == 1
        await (breaks if first else refuses)(engine, request, writer)

    engines += [await start_engine(behave) for _ in range(2)]
    router = await start_router({"m": engines})
    async with router.chat(stream=True) as response:
        text = await response.text()
    assert response.status == 200 and SECRET not in text
    assert "The replica of 'm' answered with status 500" in text


class AdapterSource:
    """A source of the deployment `m` with two adapters, which its only engine has."""

    synced = True

    def __init__(self, engine) -> None:
        self.address = Address.parse(engine.url)

    def watches(self):
        return ()

    async def run(self, directory) -> None:
        adapters = tuple(Adapter(name, (self.address,)) for name in ("sql", "law"))
        directory.put(
            Deployment(
                Key("default", "m"),
                ("m",),
                (self.address,),
                vouched=True,
                known_to_engines=True,
                adapters=adapters,
            )
        )


async def test_names_only_models_of_the_callers_key_for_an_adapter_that_no_replica_has(
    start_engine, start_router, tmp_path, caplog
):
    engine = await start_engine(refuse(404, "model_not_found", message="served here: m, law"))
    keys = KeysFile(tmp_path / "keys.yaml").write({"name": "a", "models": ["sql", "m"]})
    router = await start_router(sources=[AdapterSource(engine)], keys_file=keys)
    async with ask(router, "sql") as response:
        error = (await response.json())["error"]
    assert (response.status, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert error["message"] == "No replica serves the model 'sql' now; available: m"
    assert "served here: m, law" in caplog.text
