"""Engines and router as local processes: fetch the models, start, wait until requests are answered, run."""

import asyncio
import json
import signal
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import aiohttp

from engine_server.contract.drain import termination_grace
from llm_local.endpoints import Endpoints
from llm_local.engines import Command, Engine, available_gpus, engines
from llm_local.machine import HOST
from llm_local.processes import Program, StartError, forward_to_stderr, running, say, seconds_text
from llm_local.replica import Fetch, Pod
from llm_local.supervise import supervise

POLL_SECONDS = 0.1
PROBE_TIMEOUT = aiohttp.ClientTimeout(total=5)
# Answers of a server that is not ready yet, or of a router that has no replica.
NOT_READY = (404, 502, 503)


async def up(pods: Sequence[Pod], port: int, command: Command) -> None:
    """Run until SIGINT or SIGTERM, and leave no process behind. Raises StartError if something does not start."""
    hurry = asyncio.Event()
    work = asyncio.create_task(serve(pods, port, command, hurry))

    def stop() -> None:
        if work.cancelling():
            hurry.set()
        else:
            say("stopping: requests in flight may finish (signal once more to end at once)")
            work.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    with suppress(asyncio.CancelledError):
        await work
    say("stopped")


async def serve(pods: Sequence[Pod], port: int, command: Command, hurry: asyncio.Event) -> None:
    """Fetch the models, then run the engines and the router until cancelled."""
    start = time.monotonic()
    gpus = available_gpus(pods)
    models = await fetch(pods, command, hurry)
    fetched = time.monotonic()
    address = f"http://{HOST}:{port}"
    with tempfile.TemporaryDirectory(prefix="fairlead-") as folder:
        replicas = list(engines(pods, models, gpus, command, Path(folder)))
        endpoints = Endpoints(Path(folder) / "endpoints.json", pods, replicas)
        endpoints.write()
        # The router logs the address of its metrics.
        ports = (f"--port={port}", "--metrics-port=0")
        # The router waits for the engine that may take longest to finish its requests.
        drain = max(pod.deployment.spec.rollout.drain_timeout_seconds for pod in pods)
        arguments = (
            "router",
            f"--host={HOST}",
            *ports,
            f"--drain-timeout={drain}",
            f"--endpoints-file={endpoints.file}",
        )
        router = Program("router", command(arguments), grace=termination_grace(drain))
        say(f"starting {len(replicas)} engines and the router")
        async with aiohttp.ClientSession(timeout=PROBE_TIMEOUT) as session:
            try:
                async with asyncio.TaskGroup() as group:
                    programs = [
                        (engine.program, partial(wait_for_engine, engine, endpoints)) for engine in replicas
                    ]
                    programs += [(router, partial(wait_for_answer, session, "GET", f"{address}/health"))]
                    ready = [asyncio.Event() for _ in programs]
                    for (program, probe), was_ready in zip(programs, ready, strict=True):
                        group.create_task(supervise(program, probe, was_ready, hurry))
                    await ready[-1].wait()  # the router
                    await wait_for_routes(session, address, pods)
                    greet(address, pods, fetched - start, time.monotonic() - fetched)
                    for was_ready in ready:
                        await was_ready.wait()
                    say(f"{len(replicas)} of {len(replicas)} engines are ready after {since(start)}")
            except* StartError as failed:
                raise failed.exceptions[0] from None


async def fetch(pods: Sequence[Pod], command: Command, hurry: asyncio.Event) -> dict[Fetch, str]:
    """Return the folder of each model; the same fetch runs once. Raises StartError."""
    folders = {}
    for wanted in dict.fromkeys(pod.fetch for pod in pods if pod.fetch and pod.replicas):
        uri = wanted.uri
        start = time.monotonic()
        say(f"fetching {uri} ...")
        lines: list[str] = []
        program = Program("fetch", command(["fetch", uri]), dict(wanted.environment))
        async with running(program, lines.append, forward_to_stderr("fetch"), hurry) as process:
            code = await process.wait()
        if code != 0 or not lines:
            raise StartError(f"{uri} cannot be fetched; the lines above say why")
        folders[wanted] = lines[-1]
        say(f"{uri} is in {lines[-1]} after {since(start)}")
    return folders


def since(start: float) -> str:
    return seconds_text(time.monotonic() - start)


async def wait_for_answer(session: aiohttp.ClientSession, method: str, url: str, body: object = None) -> None:
    """Repeat a request until its answer is none of `NOT_READY`."""
    while True:
        with suppress(aiohttp.ClientError, TimeoutError):
            async with session.request(method, url, json=body) as response:
                if response.status not in NOT_READY:
                    return
        await asyncio.sleep(POLL_SECONDS)


async def wait_for_engine(engine: Engine, endpoints: Endpoints) -> None:
    """Wait until an engine is ready, and record its adapters for the router."""
    async with engine.session(PROBE_TIMEOUT) as session:
        await wait_for_answer(session, "GET", "/ready")
        await endpoints.record(session, engine)


async def wait_for_routes(session: aiohttp.ClientSession, address: str, pods: Sequence[Pod]) -> None:
    """Wait until the router forwards requests to a replica of each deployment."""
    for pod in pods:
        if pod.replicas:
            body = {"model": pod.deployment.served_names[0], "prompt": "Hello", "max_tokens": 1}
            await wait_for_answer(session, "POST", f"{address}/v1/completions", body)


def greet(address: str, pods: Sequence[Pod], fetched: float, started: float) -> None:
    """Print the served names and example requests; the times are in seconds."""
    names = [name for pod in pods for name in pod.deployment.served_names]
    spent = f"models {seconds_text(fetched)}, start {seconds_text(started)}"
    say(f"ready after {seconds_text(fetched + started)} ({spent}): {', '.join(names)}")
    messages = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
    # Greedy: sampled answers of a small model may go on for a minute.
    question = {"model": names[0], "temperature": 0, "messages": messages}
    request = f"{address}/v1/chat/completions -H 'Content-Type: application/json'"
    say(f"ask:\n  curl -s {request} -d '{json.dumps(question)}'")
    say(f"ask, streamed:\n  curl -sN {request} -d '{json.dumps({**question, 'stream': True})}'")
    say(f"stop with Ctrl-C; the router's address is\n{address}")
