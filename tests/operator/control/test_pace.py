"""The number of reconciles at a time beside a slow API server."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from fault_proxy import FaultProxy
from llm_operator.control import api_errors, cluster
from llm_operator.control.pace import Pace
from llm_operator.control.reconcile import WORKERS
from waiting import until


async def test_an_outage_takes_a_place_and_successes_bring_it_back() -> None:
    pace = Pace(3)

    for allowed in (2, 1, 1):
        await pace.begin()
        pace.unanswered()
        assert pace.allowed == allowed

    grown = []
    for _ in range(5):
        await pace.begin()
        pace.answered()
        grown.append(pace.allowed)
    assert grown == [2, 2, 3, 3, 3]
    for _ in range(3):
        await pace.begin()
    assert pace.places.locked()


def test_writes_that_are_not_answered_in_time_are_made_again_one_at_a_time(
    world: Any, manifest: Any, start_operator: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "REQUEST_SECONDS", 1)
    monkeypatch.setattr(api_errors, "OUTAGE_SECONDS", 0.1)
    names = [f"{name[:40]}-{number}" for number in range(WORKERS)]
    world.apply(*map(manifest, names))
    in_flight = 0
    seen: list[int] = []

    async def silent(request: web.Request) -> None:
        """Answer no write of a status."""
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
        until(lambda: len(seen) > WORKERS + 2)
        assert seen[:WORKERS] == list(range(1, WORKERS + 1))
        assert set(seen[WORKERS:]) == {1}

        proxy.fault = None
        for each in names:
            until(lambda each=each: world.condition(each, "Ready"))
    world.delete_all("llmd", world.namespace)
