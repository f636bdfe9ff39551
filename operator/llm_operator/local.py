"""`fairlead up FILE...`: LLMDeployments as processes of this machine behind the router, without a cluster."""

import argparse
import asyncio
import itertools
import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

import aiohttp

from engine_server.contract.drain import ROUTER_GRACE_SECONDS
from engine_server.contract.endpoints_file import EndpointsFile, FileDeployment
from engine_server.contract.labels import ROUTER_PORT
from llm_operator import manifests, replica
from llm_operator.processes import Program, StartError, keep, lasted, relayed, running, say
from llm_operator.replica import HOST, Pod

POLL_SECONDS = 0.1

Command = Callable[[Sequence[str]], tuple[str, ...]]


def fairlead(arguments: Sequence[str]) -> tuple[str, ...]:
    return (sys.executable, "-m", "engine_server.cli", *arguments)


def main(argv: list[str], command: Command = fairlead) -> int:
    parser = argparse.ArgumentParser(
        prog="fairlead up",
        description="Run the LLMDeployments in YAML files on this machine, without a cluster.",
    )
    parser.add_argument("files", metavar="FILE", nargs="+", type=Path, help="YAML with LLMDeployments")
    parser.add_argument(
        "--port",
        type=int,
        default=ROUTER_PORT,
        help="the router's port (default: %(default)s; 0: any free one)",
    )
    arguments = parser.parse_args(argv)
    try:
        pods = manifests.read(arguments.files)
        asyncio.run(up(pods, router_port(arguments.port), command))
    except (manifests.ManifestError, StartError) as error:
        print(f"fairlead up: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


def router_port(wanted: int) -> int:
    try:
        return free_ports([wanted])[0]
    except (OSError, OverflowError) as error:
        raise StartError(f"port {wanted} cannot be used ({error}); choose another one with --port") from error


def free_ports(wanted: Iterable[int]) -> list[int]:
    """The same ones, but any free one for each 0."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.create_server((HOST, port))) for port in wanted]
        return [each.getsockname()[1] for each in sockets]


class Engine(NamedTuple):
    """One replica to be: whose it is, and where it listens."""

    pod: Pod
    url: str
    program: Program


def engines(
    pods: Sequence[Pod], models: dict[str, str], gpus: Sequence[str], command: Command
) -> Iterator[Engine]:
    """Cores are divided evenly, GPUs go round."""
    listed = [(pod, index) for pod in pods for index in range(pod.deployment.spec.replicas)]
    threads = max(1, cores() // max(1, len(listed)))
    turns = itertools.cycle(gpus)
    for (pod, index), port in zip(listed, free_ports([0] * len(listed)), strict=True):
        model = models[pod.fetch] if pod.fetch else None
        its_gpus = list(itertools.islice(turns, pod.gpus))
        arguments = replica.arguments(pod, port, model, its_gpus)
        environment = replica.environment(pod, threads, its_gpus)
        program = Program(f"{pod.label}-{index}", command(arguments), environment, pod.grace)
        yield Engine(pod, f"http://{HOST}:{port}", program)


def cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def endpoints(pods: Sequence[Pod], started: Sequence[Engine]) -> EndpointsFile:
    """Return the router's endpoints file. The first deployment of the command line counts as the oldest."""
    return EndpointsFile(
        tuple(
            FileDeployment(
                namespace=pod.deployment.namespace,
                name=pod.deployment.name,
                served_names=pod.deployment.served_names,
                policy=pod.deployment.spec.routing.policy,
                created=datetime.fromtimestamp(index, UTC),
                endpoints=tuple(engine.url for engine in started if engine.pod is pod),
            )
            for index, pod in enumerate(pods)
        )
    )


async def up(pods: Sequence[Pod], port: int, command: Command) -> None:
    """Until SIGINT or SIGTERM, or until something does not come up; leaves no process behind."""
    hurry = asyncio.Event()
    work = asyncio.create_task(serve(pods, port, command, hurry))

    def stop() -> None:
        if work.cancelling():
            hurry.set()
        else:
            say("stopping: requests under way may finish (once more to end at once)")
            work.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    with suppress(asyncio.CancelledError):
        await work
    say("stopped")


async def serve(pods: Sequence[Pod], port: int, command: Command, hurry: asyncio.Event) -> None:
    start = time.monotonic()
    gpus = visible_gpus(pods)
    models = await fetch(pods, command, hurry)
    fetched = time.monotonic()
    listed = list(engines(pods, models, gpus, command))
    address = f"http://{HOST}:{port}"
    with tempfile.TemporaryDirectory(prefix="fairlead-") as folder:
        file = Path(folder) / "endpoints.json"
        file.write_bytes(endpoints(pods, listed).encode())
        arguments = ("router", f"--host={HOST}", f"--port={port}", f"--endpoints-file={file}")
        programs = [(engine.program, f"{engine.url}/ready") for engine in listed]
        programs += [(Program("router", command(arguments), grace=ROUTER_GRACE_SECONDS), f"{address}/health")]
        say(f"starting {len(listed)} engines and the router")
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
            try:
                async with asyncio.TaskGroup() as group:
                    ready = [asyncio.Event() for _ in programs]
                    for (program, url), was_ready in zip(programs, ready, strict=True):
                        probe = partial(answered, session, "GET", url)
                        group.create_task(keep(program, probe, was_ready, hurry))
                    for was_ready in ready:
                        await was_ready.wait()
                    await routed(session, address, pods)
                    greet(address, pods, fetched - start, time.monotonic() - fetched)
            except* StartError as failed:
                raise failed.exceptions[0] from None


def visible_gpus(pods: Sequence[Pod]) -> list[str]:
    if not any(pod.gpus for pod in pods):
        return []
    gpus = replica.visible_gpus(os.environ.get(replica.GPUS))
    for pod in pods:
        if pod.gpus and not gpus:
            say(f"{pod.label} asks for {pod.gpus} GPUs; there is none here, so it runs on the CPU")
        elif pod.gpus > len(gpus):
            raise StartError(f"{pod.label} asks for {pod.gpus} GPUs a replica; there are {len(gpus)} here")
    return gpus


async def fetch(pods: Sequence[Pod], command: Command, hurry: asyncio.Event) -> dict[str, str]:
    """The folder of each model, by its URI; each is brought once."""
    folders = {}
    for uri in dict.fromkeys(pod.fetch for pod in pods if pod.fetch and pod.deployment.spec.replicas):
        start = time.monotonic()
        say(f"fetching {uri} ...")
        lines: list[str] = []
        program = Program("fetch", command(["fetch", uri]))
        async with running(program, lines.append, relayed("fetch"), hurry) as process:
            code = await process.wait()
        if code != 0 or not lines:
            raise StartError(f"{uri} cannot be fetched; the lines above say why")
        folders[uri] = lines[-1]
        say(f"{uri} is in {lines[-1]} after {lasted(time.monotonic() - start)}")
    return folders


async def answered(session: aiohttp.ClientSession, method: str, url: str, body: object = None) -> None:
    """Returns once there is an answer that says neither that nobody is there nor to come later."""
    while True:
        with suppress(aiohttp.ClientError, TimeoutError):
            async with session.request(method, url, json=body) as response:
                if response.status not in (404, 502, 503):
                    return
        await asyncio.sleep(POLL_SECONDS)


async def routed(session: aiohttp.ClientSession, address: str, pods: Sequence[Pod]) -> None:
    """Returns once the router hands requests to a replica of each deployment."""
    for pod in pods:
        if pod.deployment.spec.replicas:
            body = {"model": pod.deployment.served_names[0], "prompt": "Hello", "max_tokens": 1}
            await answered(session, "POST", f"{address}/v1/completions", body)


def greet(address: str, pods: Sequence[Pod], fetched: float, started: float) -> None:
    names = [name for pod in pods for name in pod.deployment.served_names]
    spent = f"models {lasted(fetched)}, start {lasted(started)}"
    say(f"ready after {lasted(fetched + started)} ({spent}): {', '.join(names)}")
    messages = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
    # A small model, left to chance, may ramble on for a minute.
    question = {"model": names[0], "temperature": 0, "messages": messages}
    request = f"{address}/v1/chat/completions -H 'Content-Type: application/json'"
    say(f"ask:\n  curl -s {request} -d '{json.dumps(question)}'")
    say(f"ask, streamed:\n  curl -sN {request} -d '{json.dumps({**question, 'stream': True})}'")
    say(f"stop with Ctrl-C; the router's address is\n{address}")
