"""Keys and limits in front of scripted engines."""

import asyncio
import json
import logging

import pytest
from router_keys import CHAT, KEY, MESSAGES, OTHER_KEY, ask, bearer, never_answer, reporting, status_of, usage

from engine_server.router.callers.keys import digest_of
from engine_server.router.callers.peers import PeerSettings
from engine_server.router.routing.endpoint import Address


@pytest.mark.parametrize(
    "headers",
    [
        {},
        bearer("fl-wrong"),
        {"x-api-key": "fl-wrong"},
        {"Authorization": f"Basic {KEY}"},
        {"Authorization": KEY},
    ],
)
async def test_refuses_a_request_without_a_valid_key(start_engine, start_router, keys_file, headers):
    engine = await start_engine()
    router = await start_router({"m": [engine]}, keys_file=keys_file.write({"name": "a"}))
    async with ask(router, headers=headers) as response:
        assert response.status == 401 and response.headers["WWW-Authenticate"] == "Bearer"
        assert (await response.json())["error"]["code"] == "invalid_api_key"
    assert engine.received == []


@pytest.mark.parametrize(
    "headers",
    [
        bearer(),
        {"authorization": f"bearer  {KEY} "},
        {"x-api-key": KEY},
        {"X-Api-Key": KEY, "Authorization": "Bearer something-else"},
    ],
)
async def test_accepts_a_key_in_either_header(start_engine, start_router, keys_file, headers):
    router = await start_router({"m": [await start_engine()]}, keys_file=keys_file.write({"name": "a"}))
    assert await status_of(ask(router, headers=headers)) == 200


@pytest.mark.parametrize("framing", [f"Content-Length: {2**20}", "Transfer-Encoding: chunked"])
async def test_refuses_a_large_body_without_a_valid_key_before_it_is_sent(start_router, keys_file, framing):
    router = await start_router({}, keys_file=keys_file.write({"name": "a"}))
    answer = await router.raw(f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\n{framing}\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 401 ") and b"invalid_api_key" in answer


async def test_only_health_and_readiness_are_open_to_anyone(start_router, keys_file):
    router = await start_router(keys_file=keys_file.write({"name": "a"}))
    for path, status in (("/health", 200), ("/ready", 200), ("/v1/models", 401), ("/v1/models/m", 401)):
        assert await status_of(router.get(path)) == status
    for path in (CHAT, MESSAGES):
        assert await status_of(ask(router, headers={}, path=path)) == 401


async def test_a_key_without_entry_is_refused_where_the_file_is_empty(start_router, keys_file):
    router = await start_router(keys_file=keys_file.write())
    assert await status_of(ask(router)) == 401


async def test_a_key_sees_and_uses_only_its_models(start_engine, start_router, keys_file):
    engine = await start_engine()
    models = {name: [engine] for name in ("one", "two", "three")}
    file = keys_file.write(
        {"name": "a", "models": ["one", "default/two"]}, {"name": "b", "models": ["default/*"]}
    )
    router = await start_router(models, keys_file=file)
    async with router.session.get(router.url + "/v1/models", headers=bearer()) as response:
        assert [card["id"] for card in (await response.json())["data"]] == ["one", "two"]
    async with router.session.get(router.url + "/v1/models", headers=bearer(OTHER_KEY)) as response:
        assert [card["id"] for card in (await response.json())["data"]] == ["one", "three", "two"]

    for model in ("one", "default/one", "two", "default/two"):
        assert await status_of(ask(router, model)) == 200
    assert await status_of(ask(router, "three", headers=bearer(OTHER_KEY))) == 200
    for request in (
        ask(router, "three"),
        router.session.get(router.url + "/v1/models/three", headers=bearer()),
    ):
        async with request as response:
            error = (await response.json())["error"]
            assert (response.status, error["code"], error["param"]) == (403, "model_not_allowed", "model")
            assert "one, two" in error["message"]
    for request in (
        ask(router, "four"),
        router.session.get(router.url + "/v1/models/four", headers=bearer()),
    ):
        async with request as response:
            error = (await response.json())["error"]
            assert (response.status, error["code"]) == (404, "model_not_found")
            assert "one, two" in error["message"] and "three" not in error["message"]


async def test_limits_requests_per_minute(start_engine, start_router, keys_file):
    engine = await start_engine()
    file = keys_file.write({"name": "a", "requestsPerMinute": 2}, {"name": "b"})
    router = await start_router({"m": [engine]}, keys_file=file)
    assert [await status_of(ask(router)) for _ in range(2)] == [200, 200]
    async with ask(router) as response:
        error = (await response.json())["error"]
        assert (response.status, error["code"]) == (429, "rate_limited")
        assert 1 <= int(response.headers["Retry-After"]) <= 61
        assert "'a' may send 2 requests per minute" in error["message"]
    assert await status_of(ask(router, headers=bearer(OTHER_KEY))) == 200
    assert len(engine.received) == 3


async def test_limits_hold_before_the_body_is_parsed(start_engine, start_router, keys_file):
    keys = keys_file.write({"name": "team-a", "requestsPerMinute": 1})
    router = await start_router({"m": [await start_engine()]}, keys_file=keys)

    statuses = [
        await status_of(router.session.post(router.url + CHAT, data=b'{"model"', headers=bearer()))
        for _ in range(2)
    ]

    assert statuses == [400, 429]


async def test_limits_requests_in_flight_and_counts_down_when_a_client_leaves(
    start_engine, start_router, keys_file, eventually
):
    engine = await start_engine(never_answer)
    router = await start_router({"m": [engine]}, keys_file=keys_file.write({"name": "a", "concurrency": 2}))
    pending = [asyncio.ensure_future(status_of(ask(router))) for _ in range(2)]
    await eventually(lambda: len(engine.received) == 2)
    async with ask(router) as response:
        assert (response.status, response.headers["Retry-After"]) == (429, "1")
    for task in pending:
        task.cancel()
    await asyncio.wait(pending)

    async def in_flight() -> int:
        return (await usage(router))["a"]["in_flight"]

    async def none_in_flight() -> bool:
        return await in_flight() == 0

    await eventually(none_in_flight)
    engine.behave = reporting(1, 1)
    assert [await status_of(ask(router)) for _ in range(3)] == [200] * 3
    assert await in_flight() == 0


async def test_follows_changes_of_the_file_and_keeps_an_invalid_one_out(
    start_engine, start_router, keys_file, eventually, caplog
):
    router = await start_router({"m": [await start_engine()]}, keys_file=keys_file.write({"name": "a"}))
    keys_file.path.write_text(f"- name: a\n  sha256: {KEY}\n")
    await eventually(lambda: "stays in force" in caplog.text)
    assert await status_of(ask(router)) == 200
    keys_file.write({"name": "a"}, {"name": "b"})

    async def b_is_known() -> bool:
        return await status_of(ask(router, headers=bearer(OTHER_KEY))) == 200

    await eventually(b_is_known)
    keys_file.write()

    async def a_is_unknown() -> bool:
        return await status_of(ask(router)) == 401

    await eventually(a_is_unknown)
    assert KEY not in caplog.text


async def test_keys_are_never_logged_or_answered(start_engine, start_router, keys_file, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    root = tmp_path / "root"
    root.write_text("the root key")
    engine = await start_engine()
    file = keys_file.write({"name": "a", "requestsPerMinute": 1, "models": ["m"]})
    router = await start_router({"m": [engine], "n": [engine]}, keys_file=file, engine_key_file=root)
    answers = []
    for headers, model in ((bearer(), "m"), (bearer(), "m"), (bearer("fl-wrong"), "m"), (bearer(), "n")):
        async with ask(router, model, headers=headers) as response:
            answers.append(f"{response.headers} {await response.text()}")
    async with router.internal("/internal/usage") as response:
        answers.append(await response.text())
    engine_key = engine.received[0].header("Authorization").removeprefix("Bearer ")
    for secret in (KEY, "fl-wrong", "root key", engine_key, digest_of(KEY.encode()).hex()):
        assert secret not in caplog.text + "".join(answers)


@pytest.mark.parametrize("configured", ["keys", "engine key", "both"])
async def test_engines_get_the_routers_key_and_never_the_clients(
    start_engine, start_router, keys_file, tmp_path, configured
):
    root = tmp_path / "root"
    root.write_text("the root key\n")
    engine = await start_engine()
    router = await start_router(
        {"m": [engine]},
        keys_file=None if configured == "engine key" else keys_file.write({"name": "a"}),
        engine_key_file=None if configured == "keys" else root,
    )
    assert await status_of(ask(router, headers={**bearer(), "X-API-Key": KEY, "X-Session-Id": "1"})) == 200
    (received,) = engine.received
    authorization = [value for name, value in received.headers if name.lower() == "authorization"]
    assert len(authorization) == (configured != "keys")
    assert KEY not in str(received.headers)
    assert received.header("x-api-key") is None and received.header("x-session-id") == "1"


async def test_a_request_with_a_key_and_an_offer_of_http2_is_accepted(start_engine, start_router, keys_file):
    router = await start_router({"m": [await start_engine()]}, keys_file=keys_file.write({"name": "a"}))
    said = await router.raw(
        b"POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\n"
        b"Host: localhost\r\nConnection: Upgrade, HTTP2-Settings, close\r\n"
        b"Upgrade: h2c\r\nHTTP2-Settings: AAMA\r\nAuthorization: Bearer %b\r\n"
        b'Content-Length: 13\r\n\r\n{"model":"m"}' % KEY.encode()
    )
    assert said.startswith(b"HTTP/1.1 200")


async def test_credentials_pass_where_the_router_has_no_keys(start_engine, start_router):
    engine = await start_engine()
    router = await start_router({"m": [engine]})
    assert await status_of(ask(router, headers={**bearer(), "x-api-key": "k"})) == 200
    (received,) = engine.received
    assert received.header("authorization") == f"Bearer {KEY}" and received.header("x-api-key") == "k"


async def test_routers_share_the_limits_of_a_key(start_engine, start_router, keys_file, eventually):
    engine = await start_engine()
    file = keys_file.write({"name": "a", "requestsPerMinute": 4})
    first = await start_router({"m": [engine]}, keys_file=file)
    peers = PeerSettings((Address("127.0.0.1", first.metrics_port),), interval=0.05)
    second = await start_router({"m": [engine]}, keys_file=file, peers=peers)
    assert [await status_of(ask(first)) for _ in range(3)] == [200] * 3

    async def second_knows() -> bool:
        return (await usage(second)).get("a", {"requests_last_minute": 0})["requests_last_minute"] >= 3

    assert await status_of(ask(second)) == 200
    await eventually(second_knows)

    async def limited() -> bool:
        return (await usage(second))["a"]["requests_last_minute"] == 4

    await eventually(limited)
    assert await status_of(ask(second)) == 429


async def test_a_peer_that_does_not_answer_is_logged_once_and_found_again(
    start_engine, start_router, keys_file, eventually, caplog, unused_tcp_port
):
    caplog.set_level(logging.INFO)
    file = keys_file.write({"name": "a"})
    other = await start_engine(never_answer)
    peers = PeerSettings((Address("127.0.0.1", other.port),), interval=0.04)
    await start_router(keys_file=file, peers=peers)
    await eventually(lambda: len(other.received) >= 3)

    async def report(engine, request, writer):
        body = b'{"router": "x", "age": 1, "keys": {}}'
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

    other.behave = report
    await eventually(lambda: "answers again" in caplog.text)
    assert caplog.text.count("no counts from the router") == 1


async def test_official_clients_see_the_errors_of_their_api(start_engine, start_router, keys_file):
    # They take seconds to import, which the other workers are spared.
    import anthropic
    import openai

    file = keys_file.write({"name": "a", "models": ["m"], "requestsPerMinute": 1})
    router = await start_router({"m": [await start_engine()], "n": [await start_engine()]}, keys_file=file)
    chat = [{"role": "user", "content": "hello"}]

    def ask_openai(key, model):
        client = openai.OpenAI(api_key=key, base_url=f"{router.url}/v1", max_retries=0)
        return client.chat.completions.create(model=model, messages=chat)

    def ask_anthropic(key, model):
        client = anthropic.Anthropic(api_key=key, base_url=router.url, max_retries=0)
        return client.messages.create(model=model, messages=chat, max_tokens=1)

    for ask_with, package in ((ask_openai, openai), (ask_anthropic, anthropic)):
        with pytest.raises(package.AuthenticationError) as unknown:
            await asyncio.to_thread(ask_with, "fl-wrong", "m")
        assert unknown.value.body["error" if package is anthropic else "code"]
    with pytest.raises(openai.PermissionDeniedError):
        await asyncio.to_thread(ask_openai, KEY, "n")  # which counts
    for ask_with, package, kind in (
        (ask_openai, openai, "rate_limit_error"),
        (ask_anthropic, anthropic, "rate_limit_error"),
    ):
        with pytest.raises(package.RateLimitError) as limited:
            await asyncio.to_thread(ask_with, KEY, "m")
        assert int(limited.value.response.headers["retry-after"]) > 0
        assert json.loads(limited.value.response.content)["error"]["type"] == kind
