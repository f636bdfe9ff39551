"""A core process: its death before and after it connects, forks, and cancelled reads."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from waiting import until

from engine_server import AsyncEngineArgs, AsyncLLMEngine, EngineDeadError
from engine_server.engine.loop.core_process import CoreProcess
from engine_server.requests.messages import AbortRequests, CallResult

pytestmark = pytest.mark.asyncio(loop_scope="module")


def arguments(folder: Path) -> AsyncEngineArgs:
    return AsyncEngineArgs(
        model=str(folder), dtype="float32", skip_tokenizer_init=True, num_gpu_blocks_override=16
    )


@pytest.fixture(scope="module")
def loaded_shares() -> list[float]:
    """The shares of the weights that were reported during the core's start."""
    return []


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def core(tiny_llama: Path, loaded_shares: list[float]) -> AsyncIterator[CoreProcess]:
    """Return a core that is ready. The last test of this file ends it."""
    core = CoreProcess()
    core.configure(arguments(tiny_llama).create_engine_config())
    await asyncio.to_thread(core.wait_until_ready, None, loaded_shares.append)
    yield core
    core.shutdown()


async def test_start_reports_the_share_of_loaded_weights(
    core: CoreProcess, loaded_shares: list[float]
) -> None:
    assert (loaded_shares[0], loaded_shares[-1]) == (0.0, 1.0)
    assert loaded_shares == sorted(loaded_shares)


async def test_start_raises_the_cause_when_the_core_dies_before_it_connects(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "zmq.py").write_text("raise SystemExit('this zmq is broken')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(EngineDeadError, match=r"ended with status 1(?s:.)*this zmq is broken"):
        AsyncLLMEngine.from_engine_args(arguments(tiny_llama))


async def test_cancelled_receive_loses_no_message(core: CoreProcess) -> None:
    async def receive_with_cancellations(count: int) -> int:
        received = 0
        while received < count:
            reader = asyncio.create_task(core.receive())
            for _ in range(3):  # start; poll the socket; cancel in the turn in which the task would resume
                await asyncio.sleep(0)
            reader.cancel()
            await asyncio.wait([reader])
            received += not reader.cancelled() and isinstance(reader.result(), CallResult)
        return received

    calls = [asyncio.create_task(core.call("is_sleeping")) for _ in range(50)]
    assert await asyncio.wait_for(receive_with_cancellations(50), 60) == 50
    assert await asyncio.gather(*calls) == [False] * 50


FORK = """
import asyncio, os, sys
from engine_server import AsyncEngineArgs, AsyncLLMEngine, SamplingParams

args = AsyncEngineArgs(model=sys.argv[1], skip_tokenizer_init=True, num_gpu_blocks_override=16)
engine = AsyncLLMEngine.from_engine_args(args)
if (fork := os.fork()) == 0:
    sys.exit(0)  # runs what is registered for a normal exit
_, status = os.waitpid(fork, 0)

async def main():
    params = SamplingParams(max_tokens=3, detokenize=False, ignore_eos=True)
    async for output in engine.generate({"prompt_token_ids": [5]}, params, "after"):
        pass
    print(status, len(output.outputs[0].token_ids))

asyncio.run(main())
"""


async def test_exit_of_a_forked_process_leaves_the_core_of_its_parent_running(tiny_llama: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORK, str(tiny_llama)]
    ended = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.stdout.split() == ["0", "3"], ended.stderr


async def test_sends_after_the_end_are_dropped_and_receive_raises_the_cause(core: CoreProcess) -> None:
    """The last test: the core is killed."""
    os.kill(core.pid, signal.SIGKILL)
    until(lambda: not core.connected)
    core.send(AbortRequests(["1"]))
    with pytest.raises(EngineDeadError, match="SIGKILL"):
        while True:
            await core.receive()
    for _ in range(2):
        with pytest.raises(EngineDeadError, match="SIGKILL"):
            core.check(hang_timeout=300)
