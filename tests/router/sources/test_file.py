"""Deployments from the file that `fairlead up` writes."""

import json
from pathlib import Path

from engine_server.router.sources.file import FileSource


def content(*deployments: dict) -> str:
    return json.dumps({"deployments": deployments})


def write(path: Path, text: str) -> None:
    """Replace the file atomically, as `fairlead up` does."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(path)


async def ask(router, model: str) -> tuple[int, int | None]:
    async with router.chat(model) as response:
        return response.status, (await response.json()).get("port")


async def test_follows_changes_of_the_file(tmp_path, start_engine, start_router, eventually):
    path = tmp_path / "endpoints.json"
    router = await start_router(sources=[FileSource(path)])

    async def readiness() -> int:
        async with router.get("/ready") as response:
            return response.status

    async def answers(model: str, engine) -> bool:
        return await ask(router, model) == (200, engine.port)

    assert await readiness() == 503  # the file does not exist yet
    one, two = await start_engine(), await start_engine()
    first = {
        "namespace": "x",
        "name": "a",
        "servedNames": ["m", "n"],
        "policy": "round_robin",
        "created": "2026-01-01T00:00:00Z",
        "endpoints": [one.url],
    }
    write(path, content(first))
    for model in ("m", "n", "x/a", "x/m"):
        await eventually(lambda model=model: answers(model, one))
    assert await readiness() == 200
    async with router.get("/v1/models/m") as response:
        assert (await response.json())["created"] == 1767225600
    write(path, content({**first, "endpoints": [two.url]}))
    await eventually(lambda: answers("m", two))

    write(path, '{"deployments": [{"name": 3}]}')  # invalid: the deployments stay
    write(
        path, content({**first, "servedNames": ["m"], "endpoints": [two.url]}, {"name": "z", "endpoints": []})
    )

    async def n_is_gone() -> bool:
        return (await ask(router, "n"))[0] == 404

    await eventually(n_is_gone)
    assert (await ask(router, "z"))[0] == 503
    assert await answers("m", two)
    write(path, content())
    await eventually(lambda: unknown(router, "m"))


async def test_an_adapter_is_at_the_endpoints_that_the_file_lists(
    tmp_path, start_engine, start_router, eventually, caplog
):
    one, two = await start_engine(), await start_engine()
    path = tmp_path / "endpoints.json"
    router = await start_router(sources=[FileSource(path)])
    adapters = [
        {"name": "sql", "endpoints": [two.url], "error": "one engine has no memory for it"},
        {"name": "law", "error": "it is not a LoRA adapter"},
    ]
    write(path, content({"name": "a", "endpoints": [one.url, two.url], "adapters": adapters}))

    async def both_live() -> bool:
        return await router.metric(r"fairlead_router_endpoint_live\{.*\}") == 2

    await eventually(both_live)
    assert [await ask(router, "sql") for _ in range(4)] == [(200, two.port)] * 4
    async with router.chat("law") as response:
        assert response.status == 503
        assert "no_replica" in await response.text()
    assert "it is not a LoRA adapter" in caplog.text


async def unknown(router, model: str) -> bool:
    return (await ask(router, model))[0] == 404


def test_an_invalid_file_leaves_the_deployments_as_they_were(tmp_path):
    path = tmp_path / "endpoints.json"
    source = FileSource(path)
    seen: list[object] = []

    class Recorder:
        put = seen.append
        remove = seen.append

    for text in (
        content({"name": "a", "endpoints": ["http://h:1"]}),
        "{",
        content({"name": "b", "endpoints": ["ftp://h"]}),
        content({"name": "b", "endpoints": [], "adapters": [{"name": "c", "endpoints": ["ftp://h"]}]}),
        "",
    ):
        write(path, text)
        source.refresh(Recorder)
    assert len(seen) == 1
