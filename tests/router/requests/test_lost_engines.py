"""Engines that are lost without a word: their process is stopped, or their packets are dropped."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from resumable_streams import WHOLE, Stream, event
from tiers import tiered

from engine_server.router.requests.watch import WatchTimes
from engine_server.router.routing.directory import Deployment
from engine_server.router.routing.endpoint import Address

SERVER = Path(__file__).parents[2] / "silent_stream.py"
NEVER = 3600.0
FAST = WatchTimes(sweep=0.02, late=0.1, silence=0.2, probe_interval=0.05, probe_timeout=0.2, stall=NEVER)


@dataclass
class SilentServer:
    """The process of a server, which answers with one event."""

    process: asyncio.subprocess.Process
    address: Address

    @property
    def url(self) -> str:
        return str(self.address)

    # As of an engine of this process, which has to be live before a test begins.
    ready = True


@asynccontextmanager
async def silent_server(host: str, *prefix: str) -> AsyncIterator[SilentServer]:
    """Run a server, whose command is preceded by `prefix`."""
    command = [*prefix, sys.executable, str(SERVER), host]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, env=environment)
    try:
        assert process.stdout is not None
        port = int(await process.stdout.readline())
        yield SilentServer(process, Address(host, port))
    finally:
        process.kill()
        await process.wait()


@dataclass
class Namespace:
    """A network namespace, with the address of its only link."""

    name: str
    outside: str
    inside: str

    def run(self, command: str) -> None:
        """Run a command of `ip` within it."""
        ip(f"-netns {self.name} {command}")

    def drop(self) -> None:
        """Drop all packets that leave it."""
        self.run(f"route add blackhole {self.outside}/32")


def ip(command: str) -> None:
    subprocess.run(["ip", *command.split()], check=True, capture_output=True, text=True)


@contextmanager
def network_namespace() -> Iterator[Namespace]:
    """Make a namespace and a link to it. Skip the test where that is not possible."""
    name, number = f"fairlead{os.getpid()}", 4 * (os.getpid() % 2**14)
    # Of the network for benchmarks, 198.18.0.0/15.
    outside, inside = (f"198.18.{number >> 8}.{(number & 255) + host}" for host in (1, 2))
    space = Namespace(name, outside, inside)
    try:
        ip(f"netns add {name}")
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no network namespace can be made: {getattr(error, 'stderr', '') or error}")
    try:
        link = f"fl{os.getpid()}"
        ip(f"link add {link} type veth peer name inside netns {name}")
        ip(f"address add {outside}/30 dev {link}")
        ip(f"link set {link} up")
        space.run(f"address add {inside}/30 dev inside")
        space.run("link set inside up")
        yield space
    finally:
        ip(f"netns delete {name}")


@pytest.mark.parametrize(
    "times", tiered([FAST, WatchTimes(stall=NEVER)], FAST, ids=lambda times: f"{times.silence:g} s")
)
async def test_a_stream_of_a_stopped_process_continues_on_another_replica(start_engine, start_router, times):
    async with silent_server("127.0.0.1") as lost:
        router = await start_router({"m": [lost]}, watch=times)
        async with router.chat(stream=True) as response:
            assert await response.content.readuntil(b"\n\n") == event(0)
            await put_beside(router, lost, await start_engine(Stream()))

            lost.process.send_signal(signal.SIGSTOP)

            assert event(0) + await response.read() == WHOLE
    assert await router.metric("fairlead_router_interrupted_total") == 0


async def test_a_stream_of_a_lost_node_continues_on_another_replica_within_seconds(
    start_engine, start_router
):
    times = WatchTimes(silence=NEVER, stall=NEVER)
    with network_namespace() as space:
        async with silent_server(space.inside, "ip", "netns", "exec", space.name) as lost:
            router = await start_router({"m": [lost]}, watch=times)
            async with router.chat(stream=True) as response:
                assert await response.content.readuntil(b"\n\n") == event(0)
                await put_beside(router, lost, await start_engine(Stream()))

                space.drop()

                async with asyncio.timeout(20):  # a connection with the usual times is kept for 30 s
                    assert event(0) + await response.read() == WHOLE


async def put_beside(router, lost: SilentServer, engine) -> None:
    """Add a replica to the one whose stream has begun."""
    directory = router.server._directory
    (route,) = directory.routes
    addresses = (lost.address, Address.parse(engine.url))
    directory.put(Deployment(route.deployment.key, ("m",), addresses, vouched=True))
