"""The drain of a router in a cluster."""

import asyncio
import os
import signal
from urllib.parse import urlsplit

import aiohttp
import pytest
import yaml
from kubernetes_objects import endpoint, llmd, slice_of
from router_process import start_process


async def test_drain_in_a_cluster_ends_after_the_drain_timeout_of_the_llmdeployment(
    api, start_engine, eventually, session, tmp_path
):
    async def never_answer(engine, request, writer):
        await asyncio.Event().wait()

    engine = await start_engine(never_answer)
    address = urlsplit(engine.url)
    api.items["llmdeployments"] = [llmd("m", spec={"rollout": {"drainTimeoutSeconds": 1}}, namespace="a")]
    one = slice_of("m", "m-1", endpoint(address.hostname, ready=True), namespace="a")
    api.items["endpointslices"] = [{**one, "ports": [{"name": "http", "port": address.port}]}]
    kubeconfig = tmp_path / "kubeconfig"
    cluster = {"name": "fake", "cluster": {"server": api.url}}
    context = {"name": "fake", "context": {"cluster": "fake", "user": "fake"}}
    users = [{"name": "fake", "user": {"token": "t"}}]
    kubeconfig.write_text(
        yaml.safe_dump(
            {"clusters": [cluster], "contexts": [context], "users": users, "current-context": "fake"}
        )
    )
    child, url, _ = await start_process(
        "--kubernetes", "--kubeconfig", str(kubeconfig), "--drain-grace", "0", "--drain-timeout", "3600"
    )

    async def is_synced() -> bool:
        async with session.get(f"{url}/ready") as response:
            return response.status == 200

    try:
        await eventually(is_synced)
        pending = asyncio.create_task(session.post(f"{url}/v1/completions", json={"model": "m"}))
        await eventually(lambda: engine.received)
        os.kill(child.pid, signal.SIGTERM)
        assert await asyncio.wait_for(child.wait(), 30) == 0
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    with pytest.raises(aiohttp.ClientError):
        await pending
