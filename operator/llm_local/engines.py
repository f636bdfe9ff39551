"""The programs that planned pods become: each with its port, its GPUs and its share of the cores."""

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from engine_server.contract.python_module import module_command
from llm_local import machine, replica
from llm_local.processes import Program, StartError, say
from llm_local.replica import HOST, Fetch, Pod

# Returns the command line that runs `fairlead` with these arguments.
Command = Callable[[Sequence[str]], tuple[str, ...]]


def fairlead(arguments: Sequence[str]) -> tuple[str, ...]:
    return tuple(module_command("engine_server.cli", *arguments))


class Engine(NamedTuple):
    """One replica of a pod, with the address at which it will listen."""

    pod: Pod
    url: str
    program: Program


def engines(
    pods: Sequence[Pod], models: dict[Fetch, str], gpus: Sequence[str], command: Command, folder: Path
) -> Iterator[Engine]:
    """Yield every replica. Cores are divided evenly, and each GPU is assigned once; `folder` gets lists of adapters."""
    listed = [(pod, index) for pod in pods for index in range(pod.replicas)]
    threads = max(1, machine.cores() // max(1, len(listed)))
    free = iter(gpus)
    for (pod, index), port in zip(listed, machine.free_ports([0] * len(listed)), strict=True):
        model = models[pod.fetch] if pod.fetch else None
        assigned = list(itertools.islice(free, pod.gpus))
        adapters_file = folder / f"adapters-{port}.json"
        adapters_file.write_bytes(msgspec.json.encode(pod.adapters))
        arguments = replica.arguments(pod, port, model, assigned, adapters_file)
        environment = replica.environment(pod, threads, assigned)
        program = Program(f"{pod.label}-{index}", command(arguments), environment, pod.grace)
        yield Engine(pod, f"http://{HOST}:{port}", program)


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
