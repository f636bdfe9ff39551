"""Requests that wait for a replica: through a router, over engines and a source that a test controls."""

import asyncio
import json

import aiohttp

from engine_server.contract.cluster.api import Key
from engine_server.router.callers.keys import digest_of
from engine_server.router.obstacle import Obstacle
from engine_server.router.requests.hold import cold_starts
from engine_server.router.requests.hold.hold import HoldSettings
from engine_server.router.routing.directory import Deployment
from engine_server.router.routing.endpoint import Address

BUSY = json.dumps({"error": {"message": "busy", "type": "service_unavailable_error", "code": "queue_full"}})


def busy(retry_after: str, room: int = 0) -> bytes:
    lines = f"Retry-After: {retry_after}\r\nFairlead-Load: running=0, waiting=0, room={room}, kv=0.0\r\n"
    return f"HTTP/1.1 503 Busy\r\n{lines}Content-Length: {len(BUSY)}\r\n\r\n{BUSY}".encode()


class Slots:
    """An engine that answers one request at a time, each once it is told to, and refuses others."""

    def __init__(self, size: int = 1, retry_after: str = "60") -> None:
        self.size = size
        self.retry_after = retry_after
        self.running = 0
        self.refused = 0
        self.served: list[str] = []
        self.finish = asyncio.Semaphore(0)

    async def __call__(self, engine, request, writer) -> None:
        if self.running == self.size:
            self.refused += 1
            writer.write(busy(self.retry_after))
            return
        self.running += 1
        try:
            self.served.append(json.loads(request.body)["prompt"])
            await self.finish.acquire()
        finally:
            self.running -= 1
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")


def held(router) -> int:
    return router.server._hold.count


async def status_of(request) -> int:
    async with request as response:
        await response.read()
        return response.status


async def error_of(request) -> tuple[int, str, aiohttp.typedefs.LooseHeaders, dict]:
    async with request as response:
        error = (await response.json())["error"]
        return response.status, error["code"], response.headers, error


async def test_requests_at_zero_replicas_wait_for_the_first(start_engine, start_scaled, scale, eventually):
    engine = await start_engine()
    router = await start_scaled()
    requests = [asyncio.create_task(status_of(router.chat())) for _ in range(20)]
    await eventually(lambda: held(router) == 20)

    scale.set(engine)

    assert await asyncio.gather(*requests) == [200] * 20
    assert held(router) == 0 and len(engine.received) == 20


async def test_a_deployment_is_woken_once_for_all_that_wait(start_engine, start_scaled, scale, eventually):
    router = await start_scaled()
    requests = [asyncio.create_task(status_of(router.chat())) for _ in range(5)]
    await eventually(lambda: scale.wakes == 1 and held(router) == 5)
    requests.append(asyncio.create_task(status_of(router.chat())))
    await eventually(lambda: held(router) == 6)
    scale.set()  # the scale is no longer zero

    scale.set(await start_engine())

    assert await asyncio.gather(*requests) == [200] * 6
    assert scale.wakes == 1


async def test_a_wake_that_fails_is_repeated(start_engine, start_scaled, scale, eventually):
    scale.failures = 3
    router = await start_scaled()
    request = asyncio.create_task(status_of(router.chat()))
    await eventually(lambda: scale.wakes == 4)
    scale.set(await start_engine())
    assert await request == 200


async def test_a_deployment_that_returns_to_zero_is_woken_again(start_scaled, scale, eventually):
    router = await start_scaled()
    request = asyncio.create_task(status_of(router.chat()))
    await eventually(lambda: scale.wakes == 1)

    class Later:
        wakes = 0

        async def wake(self):
            Later.wakes += 1

    scale.set(waker=Later())

    await eventually(lambda: Later.wakes == 1)
    request.cancel()


async def test_a_deployment_that_cannot_start_is_reported_immediately(start_scaled, scale):
    router = await start_scaled()
    scale.set(obstacle=Obstacle("SecretNotFound", "there is no Secret hf", permanent=True))

    status, code, _, error = await error_of(router.chat())

    assert (status, code) == (503, "no_replica")
    assert "SecretNotFound" in error["message"]
    assert scale.wakes == 0


async def test_requests_that_wait_are_refused_when_the_deployment_cannot_start(
    start_scaled, scale, eventually
):
    router = await start_scaled()
    requests = [asyncio.create_task(error_of(router.chat())) for _ in range(3)]
    await eventually(lambda: held(router) == 3)

    scale.set(obstacle=Obstacle("ImagePullBackOff", permanent=True))

    for status, code, _, error in await asyncio.gather(*requests):
        assert (status, code) == (503, "no_replica") and "ImagePullBackOff" in error["message"]


async def test_a_request_beyond_the_bound_is_refused_with_retry_after(
    start_engine, start_scaled, scale, eventually
):
    engine = await start_engine()
    router = await start_scaled(HoldSettings(requests=2))
    requests = [asyncio.create_task(status_of(router.chat())) for _ in range(2)]
    await eventually(lambda: held(router) == 2)

    status, code, headers, _ = await error_of(router.chat())

    assert (status, code) == (503, "no_replica")
    assert 1 < int(headers["Retry-After"]) <= 30
    scale.set(engine)
    assert await asyncio.gather(*requests) == [200, 200]


async def test_retry_after_is_estimated_from_the_last_cold_start(
    start_engine, start_scaled, scale, eventually, monkeypatch
):
    monkeypatch.setattr(cold_starts, "DEFAULT_SECONDS", 1_000_000.0)
    router = await start_scaled(HoldSettings(requests=1))
    first = asyncio.create_task(status_of(router.chat()))
    await eventually(lambda: held(router) == 1)
    scale.set(await start_engine())
    assert await first == 200
    scale.set(waker=scale)
    second = asyncio.create_task(status_of(router.chat()))
    await eventually(lambda: held(router) == 1)

    _, _, headers, _ = await error_of(router.chat())

    assert int(headers["Retry-After"]) < cold_starts.DEFAULT_SECONDS / 2
    second.cancel()


async def test_a_request_is_refused_after_the_longest_wait(start_scaled, scale):
    router = await start_scaled(HoldSettings(seconds=0.05))
    scale.set(obstacle=Obstacle("Unschedulable", "0/3 nodes are available"))

    status, code, headers, error = await error_of(router.chat())

    assert (status, code) == (503, "no_replica")
    assert "Unschedulable" in error["message"] and int(headers["Retry-After"]) >= 1
    assert held(router) == 0


async def test_a_client_that_leaves_no_longer_waits(start_engine, start_scaled, scale, eventually):
    engine = await start_engine()
    router = await start_scaled(HoldSettings(requests=2))
    stays, leaves = (asyncio.create_task(status_of(router.chat(prompt=word))) for word in ("stay", "leave"))
    await eventually(lambda: held(router) == 2)

    leaves.cancel()

    await eventually(lambda: held(router) == 1)
    scale.set(engine)
    assert await stays == 200
    assert len(engine.received) == 1
    assert await router.metric("fairlead_router_in_flight") == 0


async def test_a_request_for_a_deployment_that_is_deleted_gets_404(start_scaled, scale, eventually):
    router = await start_scaled()
    request = asyncio.create_task(error_of(router.chat()))
    await eventually(lambda: held(router) == 1)

    scale.delete()

    assert (await request)[:2] == (404, "model_not_found")


async def test_a_request_whose_deployment_is_deleted_goes_to_another_one_that_serves_the_model(
    start_engine, start_scaled, scale, eventually
):
    engine = await start_engine()
    router = await start_scaled()
    request = asyncio.create_task(status_of(router.chat()))
    await eventually(lambda: held(router) == 1)

    other = Deployment(Key("default", "other"), ("m",), (Address.parse(engine.url),), vouched=True)
    scale.directory.put(other)
    scale.delete()

    assert await request == 200
    assert await router.metric(r'fairlead_router_requests_total\{code="200",model="default/other"\}') == 1


async def test_a_restart_of_the_only_replica_loses_no_request(start_engine, start_router, eventually):
    engine = await start_engine()
    router = await start_router({"m": [engine]}, hold=HoldSettings())
    await engine.stop()
    requests = [asyncio.create_task(status_of(router.chat())) for _ in range(5)]
    await eventually(lambda: held(router) == 5)

    await engine.start()

    assert await asyncio.gather(*requests) == [200] * 5


async def test_a_request_that_crashes_engines_reaches_three_at_most(start_engine, start_router):
    async def reset(engine, request, writer):
        writer.transport.abort()

    engine = await start_engine(reset)
    router = await start_router({"m": [engine]}, hold=HoldSettings())

    status, code, _, _ = await error_of(router.chat())

    assert (status, code) == (502, "no_answer")
    assert len(engine.received) == 3


async def test_requests_that_find_all_replicas_full_wait_only_if_that_is_wanted(start_engine, start_router):
    engine = await start_engine(Slots(0))
    router = await start_router({"m": [engine]}, hold=HoldSettings())

    status, code, headers, _ = await error_of(router.chat(prompt="a"))

    assert (status, code, headers["Retry-After"]) == (503, "saturated", "60")


async def test_requests_to_a_full_replica_are_served_in_order_as_slots_become_free(
    start_engine, start_router, eventually
):
    slots = Slots()
    router = await start_router(
        {"m": [await start_engine(slots)]}, hold=HoldSettings(when_full=True, seconds=600.0)
    )
    (endpoint,) = router.server._directory.resolve("m").endpoints
    prompts = [str(n) for n in range(12)]
    requests = [asyncio.create_task(status_of(router.chat(prompt=prompts[0])))]
    await eventually(lambda: slots.running == 1)
    for n, prompt in enumerate(prompts[1:], start=1):
        requests.append(asyncio.create_task(status_of(router.chat(prompt=prompt))))
        await eventually(lambda: held(router) == n)  # noqa: B023

    for served in range(1, len(prompts) + 1):
        waiting = len(prompts) - served
        await eventually(lambda: len(slots.served) == served and held(router) == waiting)  # noqa: B023
        if waiting:
            # The replica refuses a probe, and is known to be full from then on. A probe that was still on its way when
            # the slot becomes free could be overtaken by the next request.
            await eventually(lambda: endpoint.full_until and held(router) == waiting)  # noqa: B023
        slots.finish.release()

    assert await asyncio.gather(*requests) == [200] * len(prompts)
    assert slots.served == prompts


async def test_a_burst_from_zero_is_not_refused_many_times_by_a_small_replica(
    start_engine, start_scaled, scale, eventually
):
    slots = Slots(4)
    engine = await start_engine(slots)
    router = await start_scaled()
    requests = [asyncio.create_task(status_of(router.chat(prompt=str(n)))) for n in range(100)]
    await eventually(lambda: held(router) == 100)

    scale.set(engine)
    for _ in requests:
        slots.finish.release()

    assert await asyncio.gather(*requests) == [200] * 100
    assert slots.refused <= 100


async def test_an_engine_that_refuses_and_reports_room_gets_one_request_in_each_interval(
    start_engine, start_scaled, scale, eventually, monkeypatch
):
    attempts, attempts_before_look = 0, []

    async def lie(engine, request, writer):
        nonlocal attempts
        attempts += 1
        writer.write(busy("0", room=999_999))

    async def accept(engine, request, writer):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    engine = await start_engine(lie)
    router = await start_scaled(HoldSettings(when_full=True))
    requests = [asyncio.create_task(status_of(router.chat(prompt=str(n)))) for n in range(20)]
    await eventually(lambda: held(router) == 20)
    check = router.server._hold._check

    def record_and_check():
        attempts_before_look.append(attempts)
        check()

    monkeypatch.setattr(router.server._hold, "_check", record_and_check)
    scale.set(engine)
    await eventually(lambda: len(attempts_before_look) > 20)  # 2 s

    assert 16 < attempts_before_look[20] < 40
    engine.behave = accept
    assert await asyncio.gather(*requests) == [200] * 20


async def test_no_request_for_an_engine_that_is_shared_by_many_routers_is_refused(
    start_engine, start_router, eventually
):
    slots = Slots(4, retry_after="1")
    engine = await start_engine(slots)
    hold = HoldSettings(when_full=True, seconds=600.0)
    routers = [await start_router({"m": [engine]}, hold=hold) for _ in range(8)]
    requests = [
        asyncio.create_task(status_of(router.chat(prompt=f"{number}")))
        for router in routers
        for number in range(6)
    ]
    await eventually(lambda: slots.running == 4 and sum(map(held, routers)) == 44)

    for _ in requests:
        slots.finish.release()

    assert await asyncio.gather(*requests) == [200] * 48


async def test_later_requests_wait_behind_those_that_wait(start_engine, start_router, eventually):
    slots = Slots()
    router = await start_router({"m": [await start_engine(slots)]}, hold=HoldSettings(when_full=True))
    first = asyncio.create_task(status_of(router.chat(prompt="first")))
    await eventually(lambda: slots.running == 1)
    second = asyncio.create_task(status_of(router.chat(prompt="second")))
    await eventually(lambda: held(router) == 1)

    slots.finish.release()
    third = asyncio.create_task(status_of(router.chat(prompt="third")))
    slots.finish.release()
    slots.finish.release()

    assert await asyncio.gather(first, second, third) == [200] * 3
    assert slots.served == ["first", "second", "third"]


async def test_keys_of_higher_priority_are_served_first_and_keys_of_the_same_in_turn(
    start_engine, start_router, eventually, tmp_path
):
    slots = Slots()
    priorities = {"a": 0, "b": 0, "urgent": 1}
    file = tmp_path / "keys.yaml"
    file.write_text(
        json.dumps(
            [
                {"name": name, "sha256": digest_of(name.encode()).hex(), "priority": priority}
                for name, priority in priorities.items()
            ]
        )
    )
    hold = HoldSettings(when_full=True, seconds=600.0)
    router = await start_router({"m": [await start_engine(slots)]}, hold=hold, keys_file=file)

    def ask(key: str) -> asyncio.Task:
        headers, body = {"x-api-key": key}, {"model": "m", "prompt": key}
        return asyncio.create_task(
            status_of(router.session.post(f"{router.url}/v1/completions", json=body, headers=headers))
        )

    requests = [ask("a")]
    await eventually(lambda: slots.running == 1)
    for count, key in enumerate(("a", "a", "b", "b", "urgent"), start=1):
        requests.append(ask(key))
        await eventually(lambda: held(router) == count)  # noqa: B023
    for _ in requests:
        slots.finish.release()

    assert await asyncio.gather(*requests) == [200] * len(requests)
    assert slots.served == ["a", "urgent", "a", "b", "a", "b"]


async def test_requests_that_still_wait_at_the_end_of_a_drain_are_refused(start_scaled, scale, eventually):
    router = await start_scaled(drain_timeout=0.1)
    request = asyncio.create_task(error_of(router.chat()))
    await eventually(lambda: held(router) == 1)

    router.server.leave(0.0)

    assert (await request)[:2] == (503, "no_replica")


async def test_nothing_waits_if_the_longest_wait_is_zero(start_scaled):
    router = await start_scaled(HoldSettings(seconds=0.0))
    status, code, _, _ = await error_of(router.chat())
    assert (status, code) == (503, "no_replica")


async def test_callers_take_turns_after_those_of_a_higher_priority(
    start_engine, start_router, eventually, tmp_path
):
    callers = {"busy": 0, "idle": 0, "urgent": 1}
    keys = tmp_path / "keys.json"
    entries = [
        {"name": name, "sha256": digest_of(name.encode()).hex(), "priority": priority}
        for name, priority in callers.items()
    ]
    keys.write_text(json.dumps(entries))
    slots = Slots()
    router = await start_router(
        {"m": [await start_engine(slots)]}, hold=HoldSettings(when_full=True), keys_file=keys
    )

    def ask(caller: str):
        headers = {"Authorization": f"Bearer {caller}"}
        url = f"{router.url}/v1/completions"
        return router.session.post(url, json={"model": "m", "prompt": caller}, headers=headers)

    arrivals = ["busy", "busy", "busy", "idle", "urgent"]
    requests = [asyncio.create_task(status_of(ask("busy")))]
    await eventually(lambda: slots.running == 1)
    for n, caller in enumerate(arrivals, start=1):
        requests.append(asyncio.create_task(status_of(ask(caller))))
        await eventually(lambda: held(router) == n)  # noqa: B023
    for _ in requests:
        slots.finish.release()

    assert await asyncio.gather(*requests) == [200] * len(requests)
    assert slots.served == ["busy", "urgent", "busy", "idle", "busy", "busy"]


async def test_one_key_that_fills_the_line_leaves_places_for_others(
    start_engine, start_scaled, scale, eventually, tmp_path
):
    keys = tmp_path / "keys.yaml"
    entries = [{"name": name, "sha256": digest_of(name.encode()).hex()} for name in ("greedy", "modest")]
    keys.write_text(json.dumps(entries))
    router = await start_scaled(HoldSettings(requests=4), keys_file=keys)

    def ask(key: str) -> asyncio.Task:
        url, headers = f"{router.url}/v1/chat/completions", {"Authorization": f"Bearer {key}"}
        return asyncio.create_task(router.session.post(url, json={"model": "m"}, headers=headers))

    async def all_places_are_taken() -> bool:
        return await router.metric(r"fairlead_router_held\{.*\}") == 4

    greedy = [ask("greedy") for _ in range(4)]
    await eventually(all_places_are_taken)
    modest = [ask("modest") for _ in range(2)]
    await eventually(lambda: sum(task.done() for task in greedy) == 2)
    await eventually(all_places_are_taken)
    assert (await ask("modest")).status == 503, "its share is taken"

    scale.set(await start_engine())
    statuses = [(await task).status for task in (*greedy, *modest)]
    assert sorted(statuses[:4]) == [200, 200, 503, 503] and statuses[4:] == [200, 200]
