"""Who gets in: nobody while the model loads, nobody new once a drain has run its grace, everybody else."""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import TYPE_CHECKING

from engine_server.contract.errors import ErrorCode
from engine_server.server.errors import ApiError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from engine_server.server.engine_host import EngineHost


class Drain(Enum):
    NONE = "serving"
    ANNOUNCED = "not ready, but still taking what routers send meanwhile"
    CLOSED = "refusing, and finishing what is under way"


class Gate:
    """ASGI middleware over the API: admits, and counts what is under way."""

    def __init__(self, app: ASGIApp, host: EngineHost) -> None:
        self._app = app
        self._host = host
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self.drain = Drain.NONE

    @property
    def in_flight(self) -> int:
        return self._in_flight

    @property
    def loading(self) -> bool:
        return self._host.loading

    async def idle(self) -> None:
        """Return once nothing is under way."""
        await self._idle.wait()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith("/v1/"):
            await self._app(scope, receive, send)
            return
        refusal = self._refusal()
        if refusal is not None:
            await refusal.response()(scope, receive, send)
            return
        self._in_flight += 1
        self._idle.clear()
        try:
            await self._app(scope, receive, send)
        finally:
            self._in_flight -= 1
            if not self._in_flight:
                self._idle.set()

    def _refusal(self) -> ApiError | None:
        host = self._host
        if host.loading:
            message = f"the model is loading (phase: {host.phase}); try again soon"
            return ApiError(503, message, code=ErrorCode.LOADING, retry_after=2)
        if host.dead is not None:
            return ApiError(503, "the engine is dead", code=ErrorCode.ENGINE_DEAD, retry_after=1, close=True)
        if self.drain is Drain.CLOSED:
            return ApiError(
                503, "the server is shutting down", code=ErrorCode.DRAINING, retry_after=1, close=True
            )
        return None
