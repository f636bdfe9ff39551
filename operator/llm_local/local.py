"""Engines and router as local processes: fetch the models, start, wait until requests are answered, run."""

import asyncio
import signal
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import aiohttp

from llm_local.endpoints import Endpoints
from llm_local.engines import Command, Engine, available_gpus, engines
from llm_local.processes import Program, StartError, forward_to_stderr, running, say, seconds_text
from llm_local.replica import Fetch, Pod
from llm_local.router import Router
from llm_local.samples import CHAT, KEY, Sample, accepted
from llm_local.supervise import supervise

POLL_SECONDS = 0.1
PROBE_TIMEOUT = aiohttp.ClientTimeout(total=5)
# Answers of a server that is not ready yet, or of a router that has no replica.
NOT_READY = (404, 502, 503)


async def up(pods: Sequence[Pod], router: Router, command: Command) -> None:
    """Run until SIGINT or SIGTERM, and leave no process behind. Raises StartError if something does not start."""
    hurry = asyncio.Event()
    work = asyncio.create_task(serve(pods, router, command, hurry))

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


async def serve(pods: Sequence[Pod], router: Router, command: Command, hurry: asyncio.Event) -> None:
    """Fetch the models, then run the engines and the router until cancelled."""
    start = time.monotonic()
    gpus = available_gpus(pods)
    models = await fetch(pods, command, hurry)
    fetched = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fairlead-") as folder:
        replicas = list(engines(pods, models, gpus, command, Path(folder)))
        endpoints = Endpoints(Path(folder) / "endpoints.json", pods, replicas)
        endpoints.write()
        # The router waits for the engine that may take longest to finish its requests.
        drain = max(pod.deployment.spec.rollout.drain_timeout_seconds for pod in pods)
        say(f"starting {len(replicas)} engines and the router")
        async with aiohttp.ClientSession(timeout=PROBE_TIMEOUT) as session:
            try:
                async with asyncio.TaskGroup() as group:
                    ready = [asyncio.Event() for _ in replicas]
                    for engine, is_ready in zip(replicas, ready, strict=True):
                        probe = partial(wait_for_engine, engine, endpoints)
                        group.create_task(supervise(engine.program, probe, is_ready, hurry))
                    routes = asyncio.Event()
                    program = router.program(command, endpoints.file, drain)
                    probe = partial(wait_for_answer, session, "GET", f"{router.url}/health")
                    group.create_task(supervise(program, probe, routes, hurry))
                    await routes.wait()
                    # Requests with keys say nothing of the engines behind the router.
                    firsts = [await first_ready(pod, replicas, ready) for pod in pods if pod.replicas]
                    await wait_for_routes(session, router.url, pods)
                    names = [name for pod in pods for name in pod.deployment.served_names]
                    times = fetched - start, time.monotonic() - fetched
                    sample, model = await sample_for(firsts[0]) if firsts else (CHAT, names[0])
                    greet(router, names, sample, model, *times)
                    for is_ready in ready:
                        await is_ready.wait()
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


async def first_ready(pod: Pod, replicas: Sequence[Engine], ready: Sequence[asyncio.Event]) -> Engine:
    """Return the first engine of a pod that is ready."""
    waits = {
        asyncio.create_task(is_ready.wait()): engine
        for engine, is_ready in zip(replicas, ready, strict=True)
        if engine.pod is pod
    }
    try:
        done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        return waits[done.pop()]
    finally:
        for wait in waits:
            wait.cancel()


async def wait_for_routes(session: aiohttp.ClientSession, address: str, pods: Sequence[Pod]) -> None:
    """Wait until the router forwards requests to a replica of each deployment."""
    for pod in pods:
        if pod.replicas:
            body = {"model": pod.deployment.served_names[0], "prompt": "Hello", "max_tokens": 1}
            await wait_for_answer(session, "POST", f"{address}/v1/completions", body)


async def sample_for(engine: Engine) -> tuple[Sample, str]:
    """Return a request that the engine's model answers, and the model's name."""
    deployment = engine.pod.deployment
    async with engine.session(PROBE_TIMEOUT) as session:
        # Engines know their deployment; the router knows the other names.
        sample = await accepted(session, f"{deployment.namespace}/{deployment.name}")
    return sample, deployment.served_names[0]


def greet(
    router: Router, names: Sequence[str], sample: Sample, model: str, fetched: float, started: float
) -> None:
    """Print the served names and example requests; the times are in seconds."""
    spent = f"models {seconds_text(fetched)}, start {seconds_text(started)}"
    say(f"ready after {seconds_text(fetched + started)} ({spent}): {', '.join(names)}")
    needs_key = router.keys_file is not None
    if router.is_open:
        say(f"every machine that reaches {router.host} may ask; with --keys-file FILE a key is needed")
    if needs_key:
        say(f"set {KEY} to a key of {router.keys_file}")
    say(f"ask:\n  {sample.curl(router.url, model, needs_key)}")
    if sample.generates:
        say(f"ask, streamed:\n  {sample.curl(router.url, model, needs_key, stream=True)}")
    say(f"stop with Ctrl-C; the router's address is\n{router.url}")
