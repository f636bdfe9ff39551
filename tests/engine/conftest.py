"""An asynchronous engine that several files share."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
import pytest_asyncio
from async_engines import Watcher, make

from engine_server import AsyncLLMEngine


@pytest.fixture(scope="module", autouse=True)
def trials(shared_trials: None) -> None:
    """Share the trial of a model's replacements among its engines."""


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def watched() -> Watcher:
    return Watcher()


@pytest.fixture
def watcher(watched: Watcher) -> Watcher:
    watched.finished.clear()
    return watched


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def tiny(tiny_llama: Path, watched: Watcher) -> AsyncIterator[AsyncLLMEngine]:
    """An engine for the tests that leave it without requests."""
    engine = await asyncio.to_thread(make, tiny_llama, stat_loggers={"watcher": watched})
    yield engine
    engine.shutdown()
    assert engine.is_stopped and not psutil.pid_exists(engine.core_pid)
