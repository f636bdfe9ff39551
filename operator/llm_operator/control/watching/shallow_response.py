"""Answers of the API server for kopf, whose parser fails at objects that are nested too deeply."""

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp

from engine_server.contract.base.lines import lines
from engine_server.contract.base.nesting import decode_shallow, shallow
from engine_server.contract.cluster.page_size import LARGEST_PAGE_BYTES, read_bounded
from llm_operator.kinds import LLMDEPLOYMENTS


class ShallowLines:
    """The lines of a watch, without values that are nested too deeply."""

    def __init__(self, content: aiohttp.StreamReader) -> None:
        self._content = content

    async def iter_chunked(self, _: int) -> AsyncIterator[bytes]:
        """Yield each line by itself, whatever its length."""
        async for line in lines(self._content.iter_any()):
            yield shallow(line) + b"\n"

    def __getattr__(self, name: str) -> Any:
        """Return what aiohttp itself asks of the stream."""
        return getattr(self._content, name)


class BoundedBody:
    """The body of a page of a list, of which so many bytes are read."""

    def __init__(self, content: aiohttp.StreamReader) -> None:
        self._content = content

    async def read(self, _: int = -1) -> bytes:
        """Return the whole body. Raises AnswerTooLargeError."""
        return await read_bounded(self._content.iter_any(), LARGEST_PAGE_BYTES)

    def __getattr__(self, name: str) -> Any:
        """Return what aiohttp itself asks of the stream."""
        return getattr(self._content, name)


class ShallowResponse(aiohttp.ClientResponse):
    """An answer with a list or a watch. The objects of all kinds but ours have a bounded depth."""

    async def start(self, connection: Any) -> "ShallowResponse":
        """Receive the head."""
        await super().start(connection)
        if self.url.path.endswith(f"/{LLMDEPLOYMENTS.plural}") and "watch" in self.url.query:
            self.content = ShallowLines(self.content)  # type: ignore[assignment]
        elif self.url.query.get("limit", "1") != "1":
            self.content = BoundedBody(self.content)  # type: ignore[assignment]
        return self

    async def json(self, **_: Any) -> Any:
        """Return the decoded body."""
        return decode_shallow(json.loads, await self.read())
