"""The servers that are compared: each serves the model of a folder, in bfloat16, as `model`."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.router.processes import await_answer, free_port, process, python

# vLLM's CPU build takes one to three minutes.
START_SECONDS = 300.0
PROBE = json.dumps({"model": "model", "prompt": "The sea is", "max_tokens": 1}).encode()
CONTEXT = ("--max-model-len", "2048", "--max-num-seqs", "64")


@contextmanager
def fairlead_server(folder: Path, logs: Path) -> Iterator[str]:
    """Run our server; yield its base URL."""
    port = free_port()
    command = python("engine_server.cli", "engine", str(folder), "--served-model-name", "model", *CONTEXT)
    with process(*command, "--dtype", "bfloat16", "--port", str(port), log=logs / "fairlead.log"):
        yield answering(port)


@contextmanager
def vllm_server(venv: Path, folder: Path, logs: Path) -> Iterator[str]:
    """Run vLLM's server with as many threads as there are CPUs; yield its base URL."""
    port = free_port()
    settings = (
        "VLLM_CPU_KVCACHE_SPACE=2", "VLLM_CPU_OMP_THREADS_BIND=nobind", f"OMP_NUM_THREADS={os.cpu_count()}",
        "HF_HUB_OFFLINE=1",
    )  # fmt: skip
    command = (str(venv / "bin/vllm"), "serve", str(folder), "--served-model-name", "model", *CONTEXT)
    with process(
        "env", *settings, *command, "--dtype", "bfloat16", "--port", str(port), log=logs / "vllm.log"
    ):
        yield answering(port)


def answering(port: int) -> str:
    """Wait for a server's first answer; return its base URL."""
    url = f"http://127.0.0.1:{port}"
    await_answer(f"{url}/v1/completions", PROBE, {}, START_SECONDS)
    return url
