"""The flags, the metrics and the first log lines of `fairlead router`, as tests/snapshots.py compares them."""

import asyncio
import sys
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from snapshots import assert_unchanged, describe_registry, help_of, without_variables

SNAPSHOTS = Path(__file__).parent / "snapshots"


@pytest.mark.parametrize("words", ["router", "router key"])
def test_flags_are_unchanged(words):
    assert_unchanged(SNAPSHOTS / f"{words.replace(' ', '_')}_help.txt", help_of(*words.split()))


async def test_metrics_are_unchanged(start_router, monkeypatch):
    router = await start_router()
    registries = []
    collect = CollectorRegistry.collect

    def collect_and_record(registry):
        registries.append(registry)
        return collect(registry)

    monkeypatch.setattr(CollectorRegistry, "collect", collect_and_record)
    async with router.internal("/metrics") as page:
        assert page.status == 200
    assert_unchanged(SNAPSHOTS / "router_metrics.txt", describe_registry(registries[0]))


async def test_log_of_the_start_and_the_end_is_unchanged(tmp_path):
    endpoints = tmp_path / "endpoints.json"
    endpoints.write_text('{"deployments": []}')
    command = [sys.executable, "-m", "engine_server.cli", "router", "--host=127.0.0.1", "--port=0"]
    command += ["--metrics-port=0", f"--endpoints-file={endpoints}", "--drain-grace=0"]
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    lines = []
    async for line in process.stderr:
        lines.append(line.decode().rstrip("\n"))
        if "listening on" in lines[-1]:
            process.terminate()
    assert await process.wait() == 0
    assert_unchanged(SNAPSHOTS / "router_log.txt", without_variables(lines))
