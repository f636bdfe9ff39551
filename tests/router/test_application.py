"""The router's own pages: models, health, metrics."""

import pytest


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


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", "/nope", 404, None),
        ("HEAD", "/nope", 404, None),
        ("POST", "/", 404, None),
        ("GET", "/v1/chat/completions", 405, "POST"),
        ("DELETE", "/v1/models", 405, "GET, HEAD"),
        ("POST", "/health", 405, "GET, HEAD"),
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


async def test_counts_requests_by_model_and_status(start_engine, start_router):
    router = await start_router({"m": [await start_engine()]})
    for model in ("m", "m", "x"):
        async with router.chat(model):
            pass
    requests = "fairlead_router_requests_total"
    assert await router.metric(requests + r'\{code="200",model="m"\}') == 2
    assert await router.metric(requests + r'\{code="404",model=""\}') == 1
    assert await router.metric(r'fairlead_router_request_duration_seconds_count\{model="m"\}') == 2
    assert (
        await router.metric(r'fairlead_router_time_to_first_byte_seconds_bucket\{le="\+Inf",model="m"\}') == 2
    )
