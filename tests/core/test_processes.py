"""The engine in plain scripts: start-up errors, and the end of child processes."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from engine_server import AsyncEngineArgs, AsyncLLMEngine, EngineDeadError


def test_start_raises_value_error_for_a_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"config\.json"):
        AsyncLLMEngine.from_engine_args(AsyncEngineArgs(model=str(tmp_path)))


@pytest.mark.thorough
def test_start_names_both_sizes_when_the_cache_is_too_small(tiny_llama: Path) -> None:
    arguments = AsyncEngineArgs(model=str(tiny_llama), skip_tokenizer_init=True, num_gpu_blocks_override=3)
    with pytest.raises(EngineDeadError, match=r"needs 16 blocks.*room for 3"):
        AsyncLLMEngine.from_engine_args(arguments)


SCRIPT = """
import asyncio, os, sys
from engine_server import AsyncLLMEngine, AsyncEngineArgs, SamplingParams

engine_args = AsyncEngineArgs(model=sys.argv[1], dtype="float32", kv_cache_memory_bytes=1 << 20)
engine = AsyncLLMEngine.from_engine_args(engine_args)
if (fork := os.fork()) == 0:
    sys.exit(0)  # runs what is registered for a normal exit
_, status = os.waitpid(fork, 0)
example_input = {"prompt": "What is LLM?", "stream": False, "temperature": 0.0, "request_id": 0}

async def main():
    results_generator = engine.generate(
        example_input["prompt"],
        SamplingParams(temperature=example_input["temperature"]),
        example_input["request_id"])
    final_output = None
    async for request_output in results_generator:
        final_output = request_output
    print(status, engine.core_pid, final_output.request_id, len(final_output.outputs[0].token_ids), flush=True)

asyncio.run(main())
"""


@pytest.mark.more
def test_example_of_the_api_specification_runs_as_a_plain_script_after_the_exit_of_a_fork(
    tiny_writer: Path,
) -> None:
    """The script has no `__main__` guard or shutdown. A fork's exit leaves its core running, its own leaves no core."""
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, str(tiny_writer)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    status, core, request_id, tokens = ended.stdout.split()
    assert (status, request_id, tokens) == ("0", "0", "16")
    assert not psutil.pid_exists(int(core))


@pytest.mark.more
@pytest.mark.usefixtures("foreign_folder")
def test_core_and_ranks_import_nothing_from_the_working_folder(tiny_llama: Path) -> None:
    arguments = AsyncEngineArgs(
        model=str(tiny_llama),
        skip_tokenizer_init=True,
        num_gpu_blocks_override=32,
        tensor_parallel_size=2,
        device="cpu",
    )
    AsyncLLMEngine.from_engine_args(arguments).shutdown()


UNTIL_KILLED = """
import sys
from engine_server.engine.loop.core_process import CoreProcess

core = CoreProcess()
print(core.pid, flush=True)
sys.stdin.read()
"""


def test_core_ends_when_its_parent_is_killed() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", UNTIL_KILLED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    core = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    core.wait(timeout=60)
