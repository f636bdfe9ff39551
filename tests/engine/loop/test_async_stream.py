"""The stream of a request's outputs."""

import asyncio

import pytest

from engine_server.engine.loop.async_stream import AsyncStream
from engine_server.requests.errors import EngineDeadError
from engine_server.requests.outputs import CompletionOutput, RequestOutput
from engine_server.requests.sampling_params import RequestOutputKind


async def test_who_waits_before_each_output_gets_the_error_after_the_last_one() -> None:
    stream = AsyncStream(RequestOutputKind.DELTA)
    stream.put(RequestOutput("x", None, [1], None, [CompletionOutput(0, "a", [2])], False))
    stream.fail(EngineDeadError("the core has ended"))
    await stream.changed.wait()
    assert stream.take() is not None
    await asyncio.wait_for(stream.changed.wait(), 60)
    with pytest.raises(EngineDeadError, match="the core has ended"):
        stream.take()
