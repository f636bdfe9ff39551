import asyncio

import pytest
from router_keys import KeysFile


@pytest.fixture
async def background():
    """Run coroutines until the end of the test."""
    tasks: list[asyncio.Task] = []

    yield lambda coroutine: tasks.append(asyncio.create_task(coroutine))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
def keys_file(tmp_path):
    return KeysFile(tmp_path / "keys.yaml")
