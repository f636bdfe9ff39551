"""The servers that are compared, over HTTP: each serves its model as `model`."""

import asyncio
import json
import os
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.cpu.recorded import Run
from benchmarks.cpu.rounds import LEAST_REQUESTS, Side, Work
from benchmarks.router.processes import await_answer, free_port, process, python
from engine_server.bench.arrivals import Clients
from engine_server.bench.client import Answer, Client
from engine_server.bench.load import Load
from engine_server.bench.rows import Measurement
from engine_server.bench.run import bench, calibrate
from engine_server.bench.run import measure as run_load

# vLLM's CPU build takes one to three minutes.
START_SECONDS = 300.0
# More than arrive while the other clients decode.
MOST_PROMPTS = 1000
PROBE = json.dumps({"model": "model", "prompt": "The sea is", "max_tokens": 1}).encode()
CONTEXT = ("--max-model-len", "8192", "--max-num-seqs", "64")


@contextmanager
def fairlead_server(name: str, model: Path, dtype: str, log: Path) -> Iterator[tuple[Side, Run]]:
    """Run our server without a prefix cache; yield it, and how its steps run."""
    port = free_port()
    command = python("engine_server.cli", "engine", str(model), "--served-model-name", "model", *CONTEXT)
    settings = ("--dtype", dtype, "--no-enable-prefix-caching", "--port", str(port))
    with process(*command, *settings, log=log) as pid:
        url = answering(port)
        yield Side(name, pid, measure_over(url)), Run(lambda: read_kernels(url), lambda: read_steps(url))


@contextmanager
def vllm_server(name: str, venv: Path, folder: Path, log: Path) -> Iterator[Side]:
    """Run vLLM's server in bfloat16, without a prefix cache and with as many threads as there are CPUs."""
    port = free_port()
    settings = (
        "VLLM_CPU_KVCACHE_SPACE=2", "VLLM_CPU_OMP_THREADS_BIND=nobind", f"OMP_NUM_THREADS={os.cpu_count()}",
        "HF_HUB_OFFLINE=1",
    )  # fmt: skip
    command = (
        str(venv / "bin/vllm"), "serve", str(folder), "--served-model-name", "model", *CONTEXT,
        "--dtype", "bfloat16", "--no-enable-prefix-caching", "--port", str(port),
    )  # fmt: skip
    with process("env", *settings, *command, log=log) as pid:
        yield Side(name, pid, measure_over(answering(port)))


def answering(port: int) -> str:
    """Wait for a server's first answer; return its base URL."""
    url = f"http://127.0.0.1:{port}"
    await_answer(f"{url}/v1/completions", PROBE, {}, START_SECONDS)
    return url


def measure_over(base_url: str) -> Callable[[Work, int], float]:
    """Return the function that measures a work with `fairlead bench`'s client."""

    def measure(work: Work, number: int) -> float:
        load = Load(base_url, "model", work.prompt_tokens, work.new_tokens, seed=number)
        clients = work.requests_at_a_time
        if work.tokens_beside:
            return asyncio.run(measure_beside(load, clients, work))
        rows: list[Measurement] = []
        asyncio.run(bench(load, [Clients(clients)], rows, count=max(LEAST_REQUESTS, clients)))
        (row,) = rows
        if row.errors:
            raise SystemExit(f"{base_url}: {row.first_errors}")
        if work.figure == "first token, s":
            return (row.ttft_p50 if clients == 1 else row.ttft_p99) / 1000
        return row.output_tokens_per_second

    return measure


async def measure_beside(load: Load, clients: int, work: Work) -> float:
    """Return the figure of clients that decode while another one's prompts arrive, one after another."""
    prompts = replace(load, input_tokens=work.tokens_beside, output_tokens=1)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
        decoding, prompting = Client(session, load, ""), Client(session, prompts, "")
        words, long = await calibrate(decoding, load), await calibrate(prompting, prompts)
        answers: list[Answer] = []
        started = time.perf_counter()
        others = asyncio.create_task(run_load(prompting, prompts, Clients(1), MOST_PROMPTS, long, []))
        await run_load(decoding, load, Clients(clients), clients, words, answers)
        seconds = time.perf_counter() - started
        others.cancel()
        await asyncio.wait([others])
    if failed := [answer.error for answer in answers if answer.error]:
        raise SystemExit(f"{load.base_url}: {failed[:3]}")
    if work.figure == "longest gap, s":
        return max(gap for answer in answers for gap in answer.gaps)
    return sum(answer.output_tokens for answer in answers) / seconds


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as response:
        return str(response.read(), "utf-8")


def read_kernels(base_url: str) -> str:
    """Return the line of /server_info that names instruction level, threads and attention."""
    settings = json.loads(read(f"{base_url}/server_info"))["vllm_config"]
    return str(settings["device_config"]["kernels_in_use"])


def read_steps(base_url: str) -> dict[str, float]:
    """Return the number of steps by how they ran: `graph` or `eager`."""
    families = text_string_to_metric_families(read(f"{base_url}/metrics"))
    return {
        sample.labels["run"]: sample.value
        for family in families
        for sample in family.samples
        if sample.name == "fairlead:steps_total"
    }
