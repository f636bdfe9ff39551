"""A core process: its death before and after it connects, and cancelled reads."""

import asyncio
import os
import select
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from waiting import PATIENCE, until

from engine_server import AsyncEngineArgs, AsyncLLMEngine, EngineDeadError
from engine_server.engine.loop.core_process import CoreProcess
from engine_server.requests.messages import AbortRequests

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


@pytest.mark.more
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


@pytest.mark.more
async def test_cancelled_receive_loses_no_message(core: CoreProcess) -> None:
    first = asyncio.create_task(core.call("is_sleeping"))  # from now on the loop reads messages
    for _ in range(2):  # the result, and the report of a core without work
        await core.receive()
    assert await first is False
    for _ in range(20):
        call = asyncio.create_task(core.call("is_sleeping"))
        reader = asyncio.create_task(core.receive())
        await asyncio.sleep(0)  # both start
        # The answer arrives while the loop is blocked.
        assert select.select([core._output.fileno()], [], [], PATIENCE)[0]
        for _ in range(2):  # the loop reads it; cancel in the turn in which the task would resume
            await asyncio.sleep(0)
        reader.cancel()
        await asyncio.wait([reader])
        num_received = not reader.cancelled()
        async with asyncio.timeout(PATIENCE):
            for _ in range(2 - num_received):  # the result, and the report of a core without work
                await core.receive()
            assert await call is False


@pytest.mark.more
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
