"""The internal port: metrics and other pages that name namespaces and pods."""

import pytest


async def test_metrics_are_on_the_internal_port_alone(start_router):
    router = await start_router()
    async with router.internal("/metrics") as response:
        assert response.status == 200 and response.content_type == "text/plain"
        assert "fairlead_router_in_flight 0.0" in await response.text()
    for path in ("/metrics", "/internal/endpoints", "/internal/usage"):
        async with router.get(path) as response:
            assert response.status == 404


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/metrics", 405),
        ("POST", "/v1/chat/completions", 404),
        ("GET", "/v1/models", 404),
        ("GET", "/internal/none", 404),
    ],
)
async def test_the_internal_port_has_nothing_else(start_router, method, path, status):
    router = await start_router()
    url = f"http://127.0.0.1:{router.metrics_port}{path}"
    async with router.session.request(method, url) as response:
        assert response.status == status
