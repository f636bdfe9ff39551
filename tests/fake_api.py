"""A small API server that fails on demand."""

import asyncio
import json
from collections.abc import Awaitable, Callable

from aiohttp import web


class FakeApi:
    """Serves lists and watches over HTTP. A watch sends what is put into its queue, and ends at None."""

    def __init__(self) -> None:
        self.items: dict[str, list[dict]] = {"llmdeployments": [], "endpointslices": []}
        self.watches: dict[str, asyncio.Queue] = {kind: asyncio.Queue() for kind in self.items}
        self.queries: list[dict[str, str]] = []
        self.lists = 0
        self.failures = 0
        # The one that is taken; None: any, and none.
        self.token: str | None = None
        # Answers all requests while it is set.
        self.outage: Callable[[web.Request], Awaitable[web.StreamResponse]] | None = None
        self.page = 1000
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        kind = request.path.rsplit("/", 1)[1]
        self.queries.append({"kind": kind, **request.query})
        if self.outage is not None:
            return await self.outage(request)
        if self.token is not None and request.headers.get("Authorization") != f"Bearer {self.token}":
            return web.json_response({"kind": "Status", "message": "Unauthorized"}, status=401)
        if self.failures:
            self.failures -= 1
            return web.json_response({"kind": "Status", "message": "no"}, status=500)
        if "watch" not in request.query:
            self.lists += 1
            start = int(request.query.get("continue") or 0)
            end = start + min(self.page, int(request.query.get("limit", self.page)))
            more = {"continue": str(end)} if end < len(self.items[kind]) else {}
            items = self.items[kind][start:end]
            return web.json_response({"metadata": {"resourceVersion": "7", **more}, "items": items})
        response = web.StreamResponse()
        await response.prepare(request)
        while (data := await self.watches[kind].get()) is not None:
            await response.write(data)
        return response


def event(type_: str, changed: dict) -> bytes:
    return json.dumps({"type": type_, "object": changed}).encode() + b"\n"
