"""The programs that planned pods become: each with its socket, its GPUs and its share of the cores."""

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import aiohttp
import msgspec

from engine_server.contract.base.python_module import module_command
from engine_server.contract.base.unix_socket import address_of, path_of
from llm_local import machine, replica
from llm_local.processes import Program, StartError, say
from llm_local.replica import Fetch, Pod

# Returns the command line that runs `fairlead` with these arguments.
Command = Callable[[Sequence[str]], tuple[str, ...]]


def fairlead(arguments: Sequence[str]) -> tuple[str, ...]:
    return tuple(module_command("engine_server.cli", *arguments))


class Engine(NamedTuple):
    """One replica of a pod, with the address at which it will listen: unix:/PATH."""

    pod: Pod
    address: str
    program: Program

    def session(self, timeout: aiohttp.ClientTimeout) -> aiohttp.ClientSession:
        """Return a session whose requests, to http://localhost, reach this engine."""
        return aiohttp.ClientSession(
            "http://localhost", connector=aiohttp.UnixConnector(path_of(self.address)), timeout=timeout
        )


def engines(
    pods: Sequence[Pod], models: dict[Fetch, str], gpus: Sequence[str], command: Command, folder: Path
) -> Iterator[Engine]:
    """Yield every replica. Cores are divided evenly, and each GPU is assigned once.

    `folder` gets lists of adapters, and the engines' sockets: nobody else may enter it. Raises StartError if its path
    is too long for a socket's.
    """
    listed = [(pod, index) for pod in pods for index in range(pod.replicas)]
    threads = max(1, machine.cores() // max(1, len(listed)))
    free = iter(gpus)
    for number, (pod, index) in enumerate(listed):
        model = models[pod.fetch] if pod.fetch else None
        assigned = list(itertools.islice(free, pod.gpus))
        socket, adapters_file = folder / f"engine-{number}.sock", folder / f"adapters-{number}.json"
        try:
            address = address_of(str(socket))
        except ValueError as error:
            raise StartError(f"{error}; choose another folder for temporary files with TMPDIR") from None
        adapters_file.write_bytes(msgspec.json.encode(pod.adapters))
        engine = replica.local_command(pod, socket, model, assigned, adapters_file)
        environment = replica.environment(pod, threads, assigned)
        program = Program(f"{pod.label}-{index}", command(engine.arguments()), environment, pod.grace)
        yield Engine(pod, address, program)


def available_gpus(pods: Sequence[Pod]) -> list[str]:
    """Return the GPUs of this machine if a pod asks for any. Raises StartError if there are some, but too few."""
    asking = [pod for pod in pods if pod.gpus and pod.replicas]
    if not asking:
        return []
    gpus = machine.visible_gpus(os.environ.get(replica.GPUS))
    if not gpus:
        for pod in asking:
            say(f"{pod.label} asks for {pod.gpus} GPUs; there is none here, so it runs on the CPU")
        return []
    total = sum(pod.replicas * pod.gpus for pod in asking)
    if total > len(gpus):
        each = ", ".join(f"{pod.label} asks for {pod.replicas} x {pod.gpus}" for pod in asking)
        raise StartError(f"{total} GPUs are asked for and there are {len(gpus)} here: {each}")
    return gpus
