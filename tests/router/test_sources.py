"""Deployments from flags and from the file that `fairlead up` writes; what the router shows of them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from engine_server.router.command import main
from engine_server.router.sources.file import FileSource


def told(*deployments: dict) -> str:
    return json.dumps({"deployments": deployments})


def write(path: Path, text: str) -> None:
    """Atomically, as `fairlead up` does."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(path)


async def ask(router, model: str) -> tuple[int, int | None]:
    async with router.chat(model) as response:
        return response.status, (await response.json()).get("port")


async def test_the_file_is_followed(tmp_path, start_engine, start_router, eventually):
    path = tmp_path / "endpoints.json"
    router = await start_router(sources=[FileSource(path)])

    async def readiness() -> int:
        async with router.get("/ready") as response:
            return response.status

    async def answers(model: str, engine) -> bool:
        return await ask(router, model) == (200, engine.port)

    assert await readiness() == 503  # nothing is known before the file is there
    one, two = await start_engine(), await start_engine()
    first = {
        "namespace": "x",
        "name": "a",
        "servedNames": ["m", "n"],
        "policy": "round_robin",
        "created": "2026-01-01T00:00:00Z",
        "endpoints": [one.url],
    }
    write(path, told(first))
    for model in ("m", "n", "x/a", "x/m"):
        await eventually(lambda model=model: answers(model, one))
    assert await readiness() == 200
    async with router.get("/v1/models/m") as response:
        assert (await response.json())["created"] == 1767225600
    write(path, told({**first, "endpoints": [two.url]}))
    await eventually(lambda: answers("m", two))

    write(path, '{"deployments": [{"name": 3}]}')  # broken: what was known stays
    write(path, told({**first, "servedNames": ["m"], "endpoints": [two.url]}, {"name": "z", "endpoints": []}))

    async def n_is_gone() -> bool:
        return (await ask(router, "n"))[0] == 404

    await eventually(n_is_gone)
    assert (await ask(router, "z"))[0] == 503
    assert await answers("m", two)
    write(path, told())
    await eventually(lambda: unknown(router, "m"))


async def unknown(router, model: str) -> bool:
    return (await ask(router, model))[0] == 404


def test_a_broken_file_leaves_what_was_known(tmp_path):
    path = tmp_path / "endpoints.json"
    source = FileSource(path)
    seen: list[object] = []

    class Recorder:
        put = seen.append
        remove = seen.append

    for text in (
        told({"name": "a", "endpoints": ["http://h:1"]}),
        "{",
        told({"name": "b", "endpoints": ["ftp://h"]}),
        "",
    ):
        write(path, text)
        source.refresh(Recorder)
    assert len(seen) == 1


async def test_models_are_the_union(start_engine, start_router):
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


async def test_what_is_measured(start_engine, start_router):
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


async def test_load_is_spread(start_engine, start_router):
    engines = [await start_engine() for _ in range(4)]
    for policy in ("least_load", "round_robin"):
        router = await start_router({"m": engines}, policy=policy)
        for engine in engines:
            engine.received.clear()
        for _ in range(40):
            async with router.chat() as response:
                assert response.status == 200
        assert [len(engine.received) for engine in engines] == [10] * 4


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "no source of endpoints"),
        (["--endpoint", "m"], "NAME[,NAME...]=URL"),
        (["--endpoint", "m=https://h"], "http://HOST:PORT"),
        (["--endpoint", "m=http://h", "--policy", "none"], "--policy"),
        (["--kubernetes", "--kubeconfig", "/not/there"], "kubeconfig"),
    ],
)
def test_flags_that_make_no_sense(capsys, flags, words):
    with pytest.raises(SystemExit) as left:
        main(flags)
    assert left.value.code == 2 and words in capsys.readouterr().err


def test_the_router_brings_no_heavy_imports():
    code = (
        "import sys, engine_server.router.command as c;"
        "heavy = {'torch', 'transformers', 'kubernetes', 'kopf', 'fastapi', 'numpy'} & set(sys.modules);"
        "sys.exit(f'imported: {heavy}' if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
