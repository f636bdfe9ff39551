"""A stream whose engine is lost, behind a router with a replica of the same model and other settings."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import aiohttp
import pytest
from local_server import LocalServer, serving
from router_process import start_process
from waiting import until_async

TEMPLATE = """{# <think> <tool_call> #}{% for message in messages %}<|im_start|>{{ message['role'] }}
{{ message['content'] }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking %}<think>
{% endif %}{% endif %}"""
THOUGHT = "France has several large cities, and its capital is Paris."
ANSWER = "Paris, of course."
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
# Tokens after which answers wait.
HELD_AT = 4


class Link:
    """The connections of a router to an engine, which can be cut at once, as when the engine is killed."""

    def __init__(self, engine: LocalServer) -> None:
        self._engine = engine
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        own_reader, own_writer = await asyncio.open_connection("127.0.0.1", self._engine.port)
        self._writers += [writer, own_writer]
        for source, sink in ((reader, own_writer), (own_reader, writer)):
            task = asyncio.create_task(forward(source, sink))
            self._tasks.add(task)


async def forward(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
    except ConnectionError:
        pass  # the link is cut
    finally:
        sink.close()


@contextmanager
def replica(template: Path, thinks: bool) -> Iterator[LocalServer]:
    variables = json.dumps({"enable_thinking": thinks})
    flags = (f"--chat-template={template}", f"--default-chat-template-kwargs={variables}")
    with serving(*flags) as server, server.saying(f"{THOUGHT}\n</think>\n\n{ANSWER}"):
        yield server


@asynccontextmanager
async def router_to(*links: Link) -> AsyncIterator[tuple[str, str]]:
    """Yield the addresses of a router's API and of its metrics."""
    flags = [f"--endpoint=smollm2=http://127.0.0.1:{link.port}" for link in links]
    process, url, metrics = await start_process(*flags)
    try:
        yield url, metrics
    finally:
        process.kill()
        await process.wait()


async def num_live(session: aiohttp.ClientSession, metrics: str) -> int:
    async with session.get(metrics) as page:
        found = re.findall(r"^fairlead_router_endpoint_live\{.*\} 1", await page.text(), re.MULTILINE)
    return len(found)


@pytest.mark.parametrize("same", [True, False], ids=["same settings", "other settings"])
async def test_thought_that_breaks_off_is_continued_only_by_a_replica_with_the_same_settings(
    tmp_path: Path, same: bool
) -> None:
    template = tmp_path / "template.jinja"
    template.write_text(TEMPLATE)
    with replica(template, thinks=True) as first, replica(template, thinks=same) as second:
        links = [Link(first), Link(second)]
        await links[0].open()
        await links[1].open()
        links[1].cut()  # until the stream has begun at the first
        async with router_to(*links) as (url, metrics), aiohttp.ClientSession() as session:

            async def live(count: int) -> bool:
                return await num_live(session, metrics) == count

            await until_async(lambda: live(1))
            body = {"model": "smollm2", "messages": QUESTION, "temperature": 0, "stream": True}
            with first.holding(HELD_AT):
                async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
                    events = await answer.content.readuntil(b"\n\n")
                    while b'"reasoning' not in events:
                        events += await answer.content.readuntil(b"\n\n")
                    await links[1].open()
                    await until_async(lambda: live(2))
                    links[0].cut()
                    events += await answer.read()
        links[1].cut()

    deltas, error = read_events(events)
    reasoning = "".join(delta.get("reasoning") or "" for delta in deltas)
    content = "".join(delta.get("content") or "" for delta in deltas)
    if same:
        assert (reasoning.strip(), content.strip(), error) == (THOUGHT, ANSWER, None)
    else:
        assert reasoning and THOUGHT.startswith(reasoning)
        assert (content, error) == ("", "interrupted")


def read_events(body: bytes) -> tuple[list[dict[str, str]], str | None]:
    """Return the deltas of a stream's choice, and the code of its error, if it has one."""
    deltas, error = [], None
    for line in body.decode().splitlines():
        if line.startswith("data: {"):
            data = json.loads(line.removeprefix("data: "))
            if "error" in data:
                error = data["error"]["code"]
            else:
                deltas += [choice["delta"] for choice in data["choices"]]
    return deltas, error
