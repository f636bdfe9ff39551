"""A router as a process of its own."""

import asyncio
import sys


async def start_process(*flags: str) -> tuple[asyncio.subprocess.Process, str, str]:
    """Start a router; return the process, its URL, and that of its metrics."""
    command = [
        sys.executable,
        "-m",
        "engine_server.cli",
        "router",
        "--host",
        "127.0.0.1",
        "--port",
        "0",
        "--metrics-port",
        "0",
        *flags,
    ]
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    async for line in process.stderr:
        if b"metrics are on " in line:
            metrics = line.decode().split("metrics are on ")[1].strip()
        if b"listening on " in line:
            return process, line.decode().split("listening on ")[1].strip(), metrics
    raise AssertionError("the router did not start")
