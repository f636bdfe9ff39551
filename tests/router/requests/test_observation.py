"""Request ids, access log and traces of requests, through a real router."""

import asyncio
import json
import re

import pytest
from collector import collecting

from engine_server.router.requests.access_log import RENDERERS, AccessLog
from engine_server.router.requests.tracing import Tracing
from engine_server.router.server import Outputs

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"
SAMPLED = f"00-{TRACE}-{PARENT}-01"
UNSAMPLED = f"00-{TRACE}-{PARENT}-00"


class Lines:
    """The lines that were logged."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        self.text += text

    def objects(self) -> list[dict]:
        return [json.loads(line) for line in self.text.splitlines()]


@pytest.fixture
def lines() -> Lines:
    return Lines()


@pytest.fixture
def json_log(lines) -> Outputs:
    return Outputs(access_log=AccessLog(lines, RENDERERS["json"]))


async def post(router, path="/v1/chat/completions", *, model="m", **headers):
    async with router.session.post(router.url + path, json={"model": model}, headers=headers) as response:
        await response.read()
        return response


async def test_id_of_the_client_reaches_the_engine_and_comes_back(start_engine, start_router):
    engine = await start_engine()
    router = await start_router({"m": [engine]})
    response = await post(router, **{"X-Request-ID": "abc-1"})
    assert response.headers.getall("X-Request-Id") == ["abc-1"]
    assert engine.received[0].header("X-Request-Id") == "abc-1"


async def test_missing_or_invalid_id_is_replaced_and_the_engines_own_is_not_forwarded(
    start_engine, start_router
):
    async def behave(engine, request, writer):
        writer.write(b"HTTP/1.1 200 OK\r\nX-Request-Id: other\r\nContent-Length: 2\r\n\r\nok")

    engine = await start_engine(behave)
    router = await start_router({"m": [engine]})
    ids = []
    for headers in ({}, {"X-Request-Id": "a b"}, {"X-Request-Id": "x" * 129}):
        response = await post(router, **headers)
        ids += response.headers.getall("X-Request-Id")
    received = [
        [value for name, value in request.headers if name.lower() == "x-request-id"]
        for request in engine.received
    ]
    assert received == [[one] for one in ids]
    assert len(set(ids)) == 3 and all(re.fullmatch(r"[0-9a-f]{16}-[0-9a-f]+", one) for one in ids)


async def test_errors_of_the_router_have_an_id(start_router):
    router = await start_router()
    response = await post(router, **{"X-Request-Id": "mine"})
    assert response.status == 404 and response.headers["X-Request-Id"] == "mine"


async def test_access_log_has_attempts_endpoint_and_durations_but_no_query_or_content(
    start_engine, start_router, eventually, lines, json_log
):
    async def refuse(engine, request, writer):
        writer.write(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")

    refusing, answering = await start_engine(refuse), await start_engine()
    router = await start_router({"m": [refusing, answering]}, outputs=json_log)
    for _ in range(2):
        await post(
            router, "/v1/chat/completions?key=secret", **{"X-Request-Id": "mine", "X-Api-Key": "secret"}
        )
    await post(router, model="unknown-model")
    await eventually(lambda: len(lines.objects()) == 3)
    retried = next(line for line in lines.objects() if line.get("attempts") == 2)
    assert retried["path"] == "/v1/chat/completions" and retried["request_id"] == "mine"
    assert (retried["method"], retried["status"]) == ("POST", 200)
    assert (retried["model"], retried["deployment"]) == ("m", "default/m")
    assert retried["endpoint"] == answering.url
    assert 0 < retried["seconds_to_first_byte"] <= retried["seconds"]
    unknown = lines.objects()[-1]
    assert unknown["status"] == 404 and not {"model", "deployment", "endpoint", "attempts"} & unknown.keys()
    assert "secret" not in lines.text and "unknown-model" not in lines.text


async def test_access_log_has_clients_that_leave_before_an_answer(
    start_engine, start_router, eventually, lines, json_log
):
    async def wait(engine, request, writer):
        await asyncio.Event().wait()

    engine = await start_engine(wait)
    router = await start_router({"m": [engine]}, outputs=json_log)
    _, writer = await router.connect()
    writer.write(
        b'POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 13\r\n\r\n{"model":"m"}'
    )
    await eventually(lambda: engine.received)
    writer.close()
    await eventually(lambda: [line["status"] for line in lines.objects()] == [499])


async def test_trace_context_is_forwarded_as_it_is_without_an_exporter(start_engine, start_router):
    engine = await start_engine()
    router = await start_router({"m": [engine]})
    await post(router, traceparent=SAMPLED, tracestate="a=b,c=d")
    assert engine.received[0].header("traceparent") == SAMPLED
    assert engine.received[0].header("tracestate") == "a=b,c=d"


async def test_sampled_trace_gets_a_span_for_the_request_and_for_each_attempt(start_engine, start_router):
    async def refuse(engine, request, writer):
        writer.write(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")

    refusing, answering = await start_engine(refuse), await start_engine()
    with collecting() as (url, spans):
        tracing = Tracing(url)
        router = await start_router({"m": [refusing, answering]}, outputs=Outputs(tracing=tracing))
        while not refusing.received:
            await post(router, "/v1/completions?q=1", traceparent=SAMPLED, tracestate="a=b")
        await asyncio.to_thread(tracing.close)
    root = next(
        span for span in spans for item in span.attributes if (item.key, item.value.int_value) == ATTEMPTS
    )
    attributes = {item.key: item.value for item in root.attributes}
    assert (root.trace_id.hex(), root.parent_span_id.hex()) == (TRACE, PARENT)
    assert root.name == "POST /v1/completions"
    assert attributes["http.response.status_code"].int_value == 200
    assert attributes["fairlead.deployment"].string_value == "default/m"
    assert attributes["fairlead.request_id"].string_value
    attempts = [span for span in spans if span.parent_span_id == root.span_id]
    failed, succeeded = sorted(attempts, key=lambda span: span.start_time_unix_nano)
    ports = [
        next(item.value.int_value for item in span.attributes if item.key == "server.port")
        for span in (failed, succeeded)
    ]
    assert ports == [refusing.port, answering.port]
    assert (failed.status.code, succeeded.status.code) == (2, 0)  # error, unset
    received = [engine.received[-1].header("traceparent") for engine in (refusing, answering)]
    assert received == [f"00-{TRACE}-{span.span_id.hex()}-01" for span in (failed, succeeded)]
    assert answering.received[-1].header("tracestate") == "a=b"


@pytest.mark.parametrize("traceparent", [None, UNSAMPLED, "nonsense", f"ff-{TRACE}-{PARENT}-01"])
async def test_requests_without_a_sampled_trace_have_no_spans(start_engine, start_router, traceparent):
    engine = await start_engine()
    with collecting() as (url, spans):
        tracing = Tracing(url)
        router = await start_router({"m": [engine]}, outputs=Outputs(tracing=tracing))
        await post(router, **({"traceparent": traceparent} if traceparent else {}))
        await asyncio.to_thread(tracing.close)
    assert not spans
    assert engine.received[0].header("traceparent") == traceparent


ATTEMPTS = ("fairlead.attempts", 2)
