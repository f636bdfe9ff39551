"""Engines of other makes: servers in the shape of vLLM, SGLang and llama.cpp, which know no router."""

import asyncio
import hashlib
import json

import pytest

from engine_server.router.requests.hold.hold import HoldSettings
from engine_server.router.sources.file import FileSource

MODEL = "smol"
KEY = "engine-key"
HOLD = HoldSettings(seconds=60.0)
LIVE = r"fairlead_router_endpoint_live\{.*\}"


def response(status: str, body: dict, *lines: str) -> bytes:
    data = json.dumps(body).encode()
    head = (f"HTTP/1.1 {status}", "Content-Type: application/json", f"Content-Length: {len(data)}", *lines)
    return "\r\n".join((*head, "", "")).encode() + data


LOADING = response(
    "503 Service Unavailable",
    {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}},
)
DENIED = response("401 Unauthorized", {"error": "Unauthorized"})
FULL = response("503 Service Unavailable", {"error": {"code": 503, "message": "x", "type": "y"}})
ANSWER = {"object": "chat.completion", "usage": {"prompt_tokens": 3, "completion_tokens": 2}}
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
)
EVENT = b'data: {"choices": [{"delta": {"content": "hi"}}]}\n\n'
END = b"data: [DONE]\n\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class OtherEngine:
    """The behavior of an engine that has `/health`, takes a key, and sends nothing of ours."""

    def __init__(self, key: str = KEY) -> None:
        self.key = key
        self.loading = self.full = self.breaks_off = False

    async def __call__(self, engine, request, writer) -> None:
        if request.path == "/health":
            writer.write(LOADING if self.loading else response("200 OK", {"status": "ok"}))
        elif request.header("authorization") != f"Bearer {self.key}":
            writer.write(DENIED)
        elif self.full:
            writer.write(FULL)
        elif json.loads(request.body).get("stream"):
            writer.write(STREAM_HEAD + chunk(EVENT))
            if self.breaks_off:
                writer.close()
            else:
                writer.write(chunk(END) + b"0\r\n\r\n")
        else:
            writer.write(response("200 OK", ANSWER | {"port": engine.port}))

    @staticmethod
    def requests(engine) -> list:
        return [request for request in engine.received if request.path != "/health"]


@pytest.fixture
def new_source(tmp_path):
    """Return a function that makes the source of a deployment of other engines, by its entry in the file."""
    (tmp_path / "engine-key").write_text(f"{KEY}\n")

    def new(engines, *defaults, **entry) -> FileSource:
        file = tmp_path / "endpoints.json"
        deployment = {"name": MODEL, "endpoints": [engine.url for engine in engines], **entry}
        file.write_text(json.dumps({"deployments": [deployment]}))
        return FileSource(file, *defaults)

    return new


async def test_requests_wait_until_the_path_of_readiness_answers_and_carry_the_key_of_the_file(
    start_engine, start_router, eventually, new_source
):
    behavior = OtherEngine()
    behavior.loading = True
    engine = await start_engine(behavior, ready=False)
    source = new_source([engine], readyPath="/health", endpointKeyFile="engine-key")
    router = await start_router(sources=[source], hold=HOLD)
    await eventually(lambda: len(engine.received) > 1)  # probes

    async def ask() -> int:
        headers = {"Authorization": "Bearer clients"}
        url = f"{router.url}/v1/chat/completions"
        async with router.session.post(url, json={"model": MODEL}, headers=headers) as answered:
            return answered.status

    async def is_held() -> bool:
        return await router.metric(r"fairlead_router_held\{.*\}") == 1

    waiting = asyncio.create_task(ask())
    await eventually(is_held)
    behavior.loading = False
    assert await waiting == 200
    (request,) = behavior.requests(engine)
    assert [value for name, value in request.headers if name.lower() == "authorization"] == [f"Bearer {KEY}"]
    assert engine.probes == 0  # of /ready


async def test_the_flags_are_for_entries_without_a_path_and_a_key_of_their_own(
    start_engine, start_router, eventually, new_source, tmp_path
):
    engine = await start_engine(OtherEngine(), ready=False)
    router = await start_router(sources=[new_source([engine], "/health", tmp_path / "engine-key")], hold=HOLD)

    async with router.chat(MODEL) as answered:
        assert answered.status == 200


async def test_a_changed_key_is_sent_from_then_on(
    start_engine, start_router, eventually, new_source, tmp_path
):
    behavior = OtherEngine()
    engine = await start_engine(behavior, ready=False)
    source = new_source([engine], readyPath="/health", endpointKeyFile="engine-key")
    router = await start_router(sources=[source], hold=HOLD)
    async with router.chat(MODEL) as answered:
        assert answered.status == 200

    behavior.key = "another-key"
    (tmp_path / "engine-key").write_text(behavior.key)

    async def accepted() -> bool:
        async with router.chat(MODEL) as answered:
            return answered.status == 200

    await eventually(accepted)


async def test_without_a_readable_key_the_engines_get_no_credentials_at_all(
    start_engine, start_router, eventually, new_source, caplog
):
    engine = await start_engine(OtherEngine(), ready=False)
    source = new_source([engine], readyPath="/health", endpointKeyFile="missing")
    router = await start_router(sources=[source], hold=HOLD)

    asked = router.session.post(
        f"{router.url}/v1/completions", json={"model": MODEL}, headers={"Authorization": "Bearer clients"}
    )
    async with asked as answered:
        assert answered.status == 401
    (request,) = OtherEngine.requests(engine)
    assert request.header("authorization") is None
    assert "missing: its last valid content stays in force: No such file" in caplog.text


async def test_a_full_engine_is_left_for_another_and_conversations_stay_at_their_engine(
    start_engine, start_router, eventually, new_source
):
    behaviors = [OtherEngine(), OtherEngine()]
    engines = [await start_engine(one, ready=False) for one in behaviors]
    source = new_source(engines, readyPath="/health", endpointKeyFile="engine-key", policy="prefix")
    router = await start_router(sources=[source], hold=HOLD)

    async def both_live() -> bool:
        return await router.metric(LIVE) == 2

    await eventually(both_live)

    async def ask() -> int:
        async with router.chat(MODEL, messages=[{"role": "user", "content": "one"}]) as answered:
            assert answered.status == 200
            return (await answered.json())["port"]

    ports = [await ask() for _ in range(8)]
    assert len({*ports}) == 1
    own = next(i for i, engine in enumerate(engines) if engine.port == ports[0])
    behaviors[own].full = True
    assert await ask() == engines[1 - own].port


async def test_a_stream_is_forwarded_as_it_is_and_one_that_breaks_off_ends_with_an_error_event(
    start_engine, start_router, new_source
):
    behavior = OtherEngine()
    engine = await start_engine(behavior, ready=False)
    source = new_source([engine], readyPath="/health", endpointKeyFile="engine-key")
    router = await start_router(sources=[source], hold=HOLD)

    async with router.chat(MODEL, stream=True) as whole:
        assert await whole.read() == EVENT + END
        assert whole.headers.getall("X-Accel-Buffering") == ["no"]
        assert whole.headers.getall("Cache-Control") == ["no-cache"]
    behavior.breaks_off = True
    async with router.chat(MODEL, stream=True) as broken:
        body = await broken.read()

    forwarded, error, done = body.split(b"\n\n", 2)
    assert (forwarded + b"\n\n", done) == (EVENT, END)
    assert json.loads(error.removeprefix(b"data: "))["error"]["code"] == "interrupted"


async def test_a_caller_without_tokens_left_is_refused_by_the_estimate_of_its_prompts(
    start_engine, start_router, new_source, tmp_path
):
    engine = await start_engine(OtherEngine(), ready=False)
    keys = tmp_path / "keys.yaml"
    digest = hashlib.sha256(b"team-key").hexdigest()
    keys.write_text(json.dumps([{"name": "team", "sha256": digest, "tokensPerMinute": 50}]))
    source = new_source([engine], readyPath="/health", endpointKeyFile="engine-key")
    router = await start_router(sources=[source], hold=HOLD, keys_file=keys)
    authorized = {"Authorization": "Bearer team-key"}

    async def ask(**headers: str) -> int:
        body = {"model": MODEL, "prompt": "x" * 400}
        asked = router.session.post(f"{router.url}/v1/completions", json=body, headers=headers)
        async with asked as answered:
            return answered.status

    assert await ask() == 401
    assert await ask(**authorized) == 200
    assert await ask(**authorized) == 429
    assert OtherEngine.requests(engine)[0].header("authorization") == f"Bearer {KEY}"
