"""The number of reconciles at a time beside a slow API server."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from fault_proxy import FaultProxy
from llm_operator.control import cluster
from llm_operator.control.pace import LEAST, Pace
from llm_operator.control.reconcile import WORKERS
from waiting import until


async def test_outages_take_places_and_answers_bring_them_back() -> None:
    pace = Pace(4)

    async def after(is_outage: bool, was_answered: bool) -> int:
        await pace.begin()
        pace.end(is_outage, was_answered)
        return pace.allowed

    # An outage beside answered calls is that of one object.
    assert [await after(True, was_answered) for was_answered in (True, False, False, False)] == [4, 3, 2, 2]
    # A reconcile that calls nothing says nothing.
    assert [await after(False, False) for _ in range(5)] == [2] * 5
    assert [await after(False, True) for _ in range(6)] == [2, 3, 3, 3, 4, 4]
    for _ in range(4):
        await pace.begin()
    assert pace.places.locked()


@pytest.mark.more
def test_calls_that_are_not_answered_in_time_are_made_again_two_at_a_time(
    world: Any, manifest: Any, start_operator: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "REQUEST_SECONDS", 1)
    names = [f"{name[:40]}-{number}" for number in range(WORKERS)]
    world.apply(*map(manifest, names))
    in_flight = 0
    seen: list[int] = []

    async def silent(request: web.Request) -> None:
        """Answer no first call of a reconcile."""
        nonlocal in_flight
        if request.method == "PATCH" and "llmdeployments" in request.path:
            in_flight += 1
            seen.append(in_flight)
            try:
                await asyncio.Event().wait()
            finally:
                in_flight -= 1

    proxy = FaultProxy(world.api_server)
    proxy.fault = silent
    with proxy.running():
        account = proxy.kubeconfig(world.service_account(), tmp_path / "token")
        start_operator(account, f"--namespace={world.namespace}", f"--lease-namespace={world.namespace}")
        until(lambda: len(seen) > WORKERS and max(seen[-2 * LEAST :]) <= LEAST)
        assert max(seen) == WORKERS

        proxy.fault = None
        for each in names:
            until(lambda each=each: world.condition(each, "Ready"))
    world.delete_all("llmd", world.namespace)
