"""Requests of web pages to a router on a loopback address."""

import pytest

BODY = b'{"model":"m"}'


@pytest.mark.parametrize(
    "content_type", [None, "text/plain", "application/x-www-form-urlencoded", "application/jsonp"]
)
async def test_a_body_must_be_declared_as_json(start_engine, start_router, content_type):
    engine = await start_engine()
    router = await start_router({"m": [engine]})
    line = f"Content-Type: {content_type}\r\n" if content_type else ""
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{line}"
    said = await router.raw(f"{head}Content-Length: {len(BODY)}\r\n\r\n".encode() + BODY)
    assert said.startswith(b"HTTP/1.1 415") and b'"unsupported_media_type"' in said
    assert not engine.received
    rejected = r'fairlead_router_rejected_total\{reason="not_json",sender="client"\}'
    assert await router.metric(rejected) == 1


@pytest.mark.parametrize(
    "content_type", ["application/json; charset=utf-8", "Application/JSON", "application/a+json"]
)
async def test_every_spelling_of_json_is_accepted(start_engine, start_router, content_type):
    router = await start_router({"m": [await start_engine()]})
    url, headers = f"{router.url}/v1/completions", {"Content-Type": content_type}
    async with router.session.post(url, data=BODY, headers=headers) as response:
        assert response.status == 200


async def test_a_name_of_another_site_is_refused_on_both_ports(start_router):
    router = await start_router()
    headers = {"Host": "rebound.example"}
    for port, path in ((router.port, "/v1/models"), (router.metrics_port, "/metrics")):
        async with router.session.get(f"http://127.0.0.1:{port}{path}", headers=headers) as response:
            assert response.status == 403
            assert (await response.json())["error"]["code"] == "unknown_host"


async def test_further_names_can_be_allowed(start_router):
    router = await start_router(hosts=["models.lan"])
    async with router.session.get(f"{router.url}/v1/models", headers={"Host": "models.lan:80"}) as response:
        assert response.status == 200
