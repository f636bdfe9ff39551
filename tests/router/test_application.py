"""The public port: the paths of models, and the router's own pages: models and health."""

import pytest

from engine_server.contract.wire.paths import MODEL_PATHS


async def test_lists_the_models_of_all_deployments(start_engine, start_router):
    engine = await start_engine()
    router = await start_router({"b": [engine], "org/a": [engine, await start_engine()]})
    async with router.get("/v1/models") as response:
        listed = await response.json()
    assert listed["object"] == "list" and [card["id"] for card in listed["data"]] == ["b", "org/a"]
    for path in ("/v1/models/org/a", "/v1/models/org%2Fa", "/v1/models/default/org%2Fa"):
        async with router.get(path) as response:
            card = await response.json()
        assert response.status == 200 and card["object"] == "model" and card["id"].endswith("org/a")
    async with router.get("/v1/models/c") as response:
        assert response.status == 404
        assert (await response.json())["error"]["code"] == "model_not_found"


def reporting(context: int):
    """Return the behaviour of an engine that reports a context."""

    async def behave(engine, request, writer) -> None:
        load = b"Fairlead-Load: running=1, waiting=0, room=63, kv=0.25, context=%d" % context
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n%b\r\n\r\nok" % load)

    return behave


async def test_models_have_the_shortest_context_that_their_engines_report(start_engine, start_router):
    engines = [await start_engine(reporting(context)) for context in (4096, 2048)]
    router = await start_router({"m": engines, "silent": [await start_engine()]}, policy="round_robin")
    async with router.get("/v1/models/m") as response:
        before = await response.json()
    for _ in range(4):
        async with router.chat() as response:
            await response.read()

    async with router.get("/v1/models") as response:
        after = {card["id"]: card["max_model_len"] for card in (await response.json())["data"]}

    assert before["max_model_len"] is None
    assert after == {"m": 2048, "silent": None}


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
async def test_own_errors_of_messages_have_the_id_of_the_request(start_router, path):
    router = await start_router()
    for method, body, status in (("POST", {"model": "none"}, 404), ("GET", None, 405)):
        async with router.session.request(method, router.url + path, json=body) as response:
            error = await response.json()
        assert response.status == status and error["type"] == "error"
        assert error["request_id"] == response.headers["request-id"] == response.headers["x-request-id"]


async def test_own_errors_of_other_apis_have_no_id_of_anthropics(start_router):
    router = await start_router()
    async with router.chat("none") as response:
        assert "request-id" not in response.headers and set(await response.json()) == {"error"}


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", "/nope", 404, None),
        ("HEAD", "/nope", 404, None),
        ("POST", "/", 405, "GET, HEAD, OPTIONS"),
        ("HEAD", "/", 200, None),
        ("GET", "/v1/chat/completions", 405, "POST, OPTIONS"),
        ("DELETE", "/v1/models", 405, "GET, HEAD, OPTIONS"),
        ("POST", "/health", 405, "GET, HEAD, OPTIONS"),
        ("HEAD", "/health", 200, None),
    ],
)
async def test_answers_unknown_paths_and_wrong_methods(start_router, method, path, status, allow):
    router = await start_router()
    for _ in range(2):  # the connection stays usable
        async with router.session.request(method, router.url + path) as response:
            assert response.status == status
            assert response.headers.get("Allow") == allow
            body = await response.read()
    assert (body == b"") == (method == "HEAD")


async def test_root_is_an_empty_page_for_load_balancers_that_check_no_other(start_router):
    router = await start_router()
    async with router.session.get(router.url + "/") as response:
        assert (response.status, await response.read()) == (200, b"")


@pytest.mark.parametrize("path", sorted(MODEL_PATHS))
async def test_forwards_every_model_path_of_the_engine_server(start_engine, start_router, path):
    engine = await start_engine()
    router = await start_router({"m": [engine]})
    for target in (path, f"{path}?beta=true"):
        async with router.session.post(router.url + target, json={"model": "m"}) as response:
            assert response.status == 200
        assert engine.received[-1].path == target
    async with router.get(path) as response:
        assert response.status == 405 and response.headers["Allow"] == "POST, OPTIONS"


@pytest.mark.parametrize(
    "target",
    [
        "/v1/%6coad_lora_adapter",
        "/v1/load_lora_adapter",
        "/v1/../sleep",
        "/v1/chat/../../sleep",
        "/v1/completions/",
        "//v1/completions",
        "/V1/completions",
        "/v1/completions%3Fa=b",
        "/v1/%63ompletions",
        "/v1/completions;a=b",
        "/v1/completions#a",
        "/sleep",
        "/v1/",
    ],
)
async def test_other_paths_and_other_spellings_of_paths_are_unknown(start_engine, start_router, target):
    engine = await start_engine()
    router = await start_router({"m": [engine]})
    head = f"POST {target} HTTP/1.1\r\nConnection: close\r\nContent-Length: 13\r\n\r\n"
    answer = await router.raw(head.encode() + b'{"model":"m"}')
    assert answer.startswith(b"HTTP/1.1 404") and b'"unknown_path"' in answer
    assert not engine.received


async def test_counts_requests_by_model_and_status(start_engine, start_router):
    router = await start_router({"m": [await start_engine()]})
    for model in ("m", "m", "x"):
        async with router.chat(model):
            pass
    requests = "fairlead_router_requests_total"
    assert await router.metric(requests + r'\{code="200",model="default/m"\}') == 2
    assert await router.metric(requests + r'\{code="404",model=""\}') == 1
    assert await router.metric(r'fairlead_router_request_duration_seconds_count\{model="default/m"\}') == 2
    assert (
        await router.metric(
            r'fairlead_router_time_to_first_byte_seconds_bucket\{le="\+Inf",model="default/m"\}'
        )
        == 2
    )


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [("POST", "/sleep", 404), ("GET", "/v1/completions", 405), ("GET", "/nope", 404)],
)
async def test_counts_requests_that_are_not_routed(start_router, method, path, code):
    router = await start_router()
    async with router.session.request(method, router.url + path) as response:
        assert response.status == code
    counted = rf'fairlead_router_requests_total\{{code="{code}",model=""\}}'
    assert await router.metric(counted) == 1


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens?beta=true"])
async def test_errors_on_paths_of_anthropics_api_have_its_shape(start_router, path):
    router = await start_router()
    async with router.session.post(router.url + path, json={"model": "m"}) as response:
        body = await response.json()
    assert response.status == 404
    assert body["type"] == "error"
    assert body["error"]["type"] == "not_found_error" and body["error"]["code"] == "model_not_found"


ORIGIN = "https://chat.example"


async def test_without_origins_a_preflight_allows_no_other_origin(start_router):
    router = await start_router()
    headers = {"Origin": ORIGIN, "Access-Control-Request-Method": "POST"}
    for path, allow in (("/v1/completions", "POST, OPTIONS"), ("/v1/models", "GET, HEAD, OPTIONS")):
        async with router.session.options(router.url + path, headers=headers) as response:
            assert response.status == 204 and response.headers["Allow"] == allow
            assert not [name for name in response.headers if name.startswith("Access-Control")]
    async with router.session.options(router.url + "/sleep", headers=headers) as response:
        assert response.status == 404


@pytest.mark.parametrize(
    ("allowed", "origin", "expected"),
    [
        ([ORIGIN], ORIGIN, ORIGIN),
        (["https://other.example", ORIGIN], ORIGIN, ORIGIN),
        ([ORIGIN], "https://chat.example.evil", None),
        ([ORIGIN], None, None),
        (["*"], "https://any.example", "*"),
    ],
)
async def test_allows_pages_of_configured_origins(start_engine, start_router, allowed, origin, expected):
    """Own answers, preflights, errors and answers of engines, whose own fields are replaced."""

    async def behave(engine, request, writer):
        writer.write(
            b"HTTP/1.1 200 OK\r\nAccess-Control-Allow-Origin: https://engine.example\r\n"
            b"Access-Control-Allow-Credentials: true\r\nContent-Length: 2\r\n\r\nok"
        )

    router = await start_router({"m": [await start_engine(behave)]}, origins=allowed)
    headers = {"Origin": origin} if origin else {}
    preflight = {**headers, "Access-Control-Request-Headers": "authorization,content-type"}
    async with router.session.options(f"{router.url}/v1/completions", headers=preflight) as response:
        assert response.status == 204
        assert response.headers["Access-Control-Allow-Methods"] == "POST, OPTIONS"
        assert response.headers["Access-Control-Allow-Headers"] == "authorization,content-type"
        answers = [response]
    for method, path, body in (
        ("POST", "/v1/completions", b'{"model":"m"}'),
        ("GET", "/v1/models", b""),
        ("GET", "/nope", b""),
        ("POST", "/v1/completions", b"{"),
    ):
        async with router.session.request(method, router.url + path, data=body, headers=headers) as response:
            answers.append(response)
    assert [answer.headers.getall("Access-Control-Allow-Origin", [None]) for answer in answers] == [
        [expected]
    ] * 5
    assert all("Access-Control-Allow-Credentials" not in answer.headers for answer in answers)
    refused = (
        f"POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\n"
        f"Origin: {origin}\r\nContent-Length: 999999999999\r\n\r\n"
    )
    said = (await router.raw(refused.encode())).decode()
    assert said.startswith("HTTP/1.1 413")
    assert (f"Access-Control-Allow-Origin: {expected}\r\n" in said) == (expected is not None)


async def test_drops_every_field_between_router_and_engines(start_engine, start_router):
    async def behave(engine, request, writer):
        writer.write(
            b"HTTP/1.1 200 OK\r\nFairlead-Load: 1\r\nFAIRLEAD-Future: 1\r\nContent-Length: 2\r\n\r\nok"
        )

    engine = await start_engine(behave)
    router = await start_router({"m": [engine]})
    fields = {"Fairlead-Resume": "1", "fairlead-deployment": "a/b", "Fairlead-Future": "1"}
    async with router.session.post(
        f"{router.url}/v1/completions", json={"model": "m"}, headers=fields
    ) as response:
        assert not [name for name in response.headers if name.lower().startswith("fairlead")]
    received = engine.received[0]
    assert not any(received.header(name) for name in fields)
