"""The coroutines that write to the cluster, after an error that none of them expects."""

import asyncio
import logging

import pytest
from llm_operator import command
from waiting import until_async


async def test_a_writer_starts_again_after_an_error_and_stops_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(command, "RESTART_SECONDS", 0.0)
    starts: list[str] = []

    async def faulty() -> None:
        starts.append("faulty")
        if len(starts) < 4:
            raise OverflowError("a number that nobody expected")
        await asyncio.Event().wait()

    async def other() -> None:
        starts.append("other")
        await asyncio.Event().wait()

    with caplog.at_level(logging.ERROR):
        writing = asyncio.create_task(command.write([other, faulty], []))
        await until_async(lambda: len(starts) == 4)
    assert not writing.done()
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing

    assert starts == ["other", "faulty", "faulty", "faulty"]
    assert caplog.text.count("a writer failed") == 2
