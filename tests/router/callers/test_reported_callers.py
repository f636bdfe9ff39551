"""The callers that the router reports to engines which ask for its key."""

from pathlib import Path

import pytest
import yaml
from resumable_streams import WHOLE, Stream, read

from engine_server.contract.base.caller import ReportedCaller
from engine_server.router.callers.keys import digest_of

CALLER = "Fairlead-Caller"
OWN = "id=11111111111111111111111111111111, scope=22222222222222222222222222222222, priority=-999"


@pytest.fixture
def root(tmp_path) -> Path:
    file = tmp_path / "root"
    file.write_bytes(b"root of all")
    return file


def write_keys(folder: Path, **keys: dict) -> Path:
    """Write a keys file in which each name is the key too."""
    entries = [{"name": name, "sha256": digest_of(name.encode()).hex(), **keys[name]} for name in keys]
    fresh = folder / "keys.new"
    fresh.write_text(yaml.safe_dump(entries))
    return fresh.replace(folder / "keys.yaml")


async def reported(router, engine, key: str | None) -> str | None:
    """Return what the engine gets of a request with this key and with a header of the client's own."""
    headers = {CALLER: OWN} if key is None else {CALLER: OWN, "Authorization": f"Bearer {key}"}
    url = f"{router.url}/v1/completions"
    async with router.session.post(url, json={"model": "m", "prompt": "a"}, headers=headers) as response:
        assert response.status == 200 and CALLER not in response.headers
    names = [name for name, _ in engine.received[-1].headers]
    assert names.count(CALLER) <= 1
    return engine.received[-1].header(CALLER)


async def test_engines_get_pseudonyms_and_the_negated_priority_of_each_key(
    start_engine, start_router, tmp_path, root
):
    engine = await start_engine()
    file = write_keys(tmp_path, red={"priority": 10}, blue={})
    router = await start_router({"m": [engine]}, keys_file=file, engine_key_file=root)

    values = {key: await reported(router, engine, key) for key in ("red", "blue")}
    callers = {key: ReportedCaller.parse(value) for key, value in values.items()}

    assert await reported(router, engine, "red") == values["red"]
    assert (callers["red"].priority, callers["blue"].priority) == (-10, 0)
    assert len({name for caller in callers.values() for name in (caller.id, caller.scope)}) == 4
    assert not any(name in value for name in callers for value in values.values())


async def test_keys_with_one_cache_scope_are_told_apart_but_for_their_prompts(
    start_engine, start_router, tmp_path, root
):
    engine = await start_engine()
    keys = {
        "red": {"cacheScope": "warm"},
        "orange": {"cacheScope": "warm"},
        "blue": {},
        "any": {"cacheScope": "*"},
        "all": {"cacheScope": "*"},
    }
    file = write_keys(tmp_path, **keys)
    router = await start_router({"m": [engine]}, keys_file=file, engine_key_file=root)

    callers = {key: ReportedCaller.parse(await reported(router, engine, key)) for key in keys}

    assert callers["red"].scope == callers["orange"].scope
    assert callers["any"].scope == callers["all"].scope
    assert len({caller.scope for caller in callers.values()}) == 3
    assert len({caller.id for caller in callers.values()}) == 5


async def test_routers_with_the_same_root_key_report_the_same(start_engine, start_router, tmp_path, root):
    engine = await start_engine()
    file = write_keys(tmp_path, red={})
    routers = [await start_router({"m": [engine]}, keys_file=file, engine_key_file=root) for _ in range(2)]
    assert len({await reported(router, engine, "red") for router in routers}) == 1


@pytest.mark.parametrize("keys", [False, True])
@pytest.mark.parametrize("root_key", [False, True])
async def test_nothing_is_reported_unless_callers_and_engines_have_keys(
    start_engine, start_router, tmp_path, root, keys, root_key
):
    engine = await start_engine()
    router = await start_router(
        {"m": [engine]},
        keys_file=write_keys(tmp_path, red={}) if keys else None,
        engine_key_file=root if root_key else None,
    )
    value = await reported(router, engine, "red" if keys else None)
    assert (value is not None) == (keys and root_key)
    assert value != OWN


async def test_changed_entry_and_root_key_are_reported_from_the_next_request_on(
    start_engine, start_router, tmp_path, root, eventually
):
    engine = await start_engine()
    file = write_keys(tmp_path, red={"priority": 1})
    router = await start_router({"m": [engine]}, keys_file=file, engine_key_file=root)
    before = ReportedCaller.parse(await reported(router, engine, "red"))

    write_keys(tmp_path, red={"priority": 2, "cacheScope": "team"})

    async def has_changed() -> bool:
        now = ReportedCaller.parse(await reported(router, engine, "red"))
        return now.id == before.id and now.scope != before.scope and now.priority == -2

    await eventually(has_changed)
    root.write_bytes(b"another root")

    async def has_another_id() -> bool:
        return ReportedCaller.parse(await reported(router, engine, "red")).id != before.id

    await eventually(has_another_id)


async def test_continued_stream_is_reported_as_the_same_callers(start_engine, start_router, tmp_path, root):
    stream = Stream(3)
    first, second = await start_engine(stream), await start_engine(stream)
    file = write_keys(tmp_path, red={"priority": 4})
    router = await start_router({"m": [first, second]}, keys_file=file, engine_key_file=root)
    router.session.headers["Authorization"] = "Bearer red"

    assert await read(router) == WHOLE

    requests = [*first.received, *second.received]
    assert [one.header("Fairlead-Resume") for one in requests].count("1") == 1
    assert len({one.header(CALLER) for one in requests}) == 1 and requests[0].header(CALLER)


async def test_the_ring_of_prefixes_tells_scopes_apart(start_engine, start_router, tmp_path, root):
    engines = [await start_engine() for _ in range(4)]
    keys = {f"key-{number}": {} for number in range(16)} | {
        f"team-{number}": {"cacheScope": "team"} for number in range(4)
    }
    file = write_keys(tmp_path, **keys)
    router = await start_router({"m": engines}, policy="prefix", keys_file=file, engine_key_file=root)

    async def answering(key: str) -> int:
        counts = [len(engine.received) for engine in engines]
        headers = {"Authorization": f"Bearer {key}"}
        url = f"{router.url}/v1/completions"
        async with router.session.post(url, json={"model": "m", "prompt": "a"}, headers=headers) as response:
            assert response.status == 200
        return next(number for number, engine in enumerate(engines) if len(engine.received) > counts[number])

    chosen = {key: await answering(key) for key in keys}
    assert len({engine for key, engine in chosen.items() if key.startswith("team")}) == 1
    assert len(set(chosen.values())) > 1
