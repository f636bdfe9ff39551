"""Admission of requests: by their key, and by the gate."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from starlette.datastructures import MutableHeaders

from engine_server.contract.wire.engine_report import Fingerprint, ReportedLoad, StreamSettings
from engine_server.contract.wire.router_head import without_caller
from engine_server.server.http.api_keys import ApiKeys, credentials, unauthorized

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from engine_server.server.engine_host import EngineHost
    from engine_server.server.gate import Gate


class Admission:
    """ASGI middleware that admits requests which have a key, and for which the gate is open.

    From those that need none it removes the header that reports the caller, which anybody may have written. It adds the
    headers of the load and the model to all answers of a loaded engine, refusals by the gate included.
    """

    def __init__(
        self,
        app: ASGIApp,
        host: EngineHost,
        gate: Gate,
        keys: ApiKeys,
        *,
        public: Collection[str],
        exempt: Collection[str],
    ) -> None:
        """public: paths that take no key. exempt: paths that are answered at any time, and not counted."""
        self._app = app
        self._host = host
        self._gate = gate
        self._keys = keys
        self._public = frozenset(public)
        self._exempt = frozenset(exempt)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        needs_key = self._keys.required and path not in self._public
        if needs_key and not self._keys.accept(credentials(scope["headers"])):
            await unauthorized()(scope, receive, send)
            return
        if not needs_key:
            scope["headers"] = without_caller(scope["headers"])
        if not self._host.loading:
            send = self._with_headers(send)
        if path in self._exempt:
            await self._app(scope, receive, send)
            return
        if refusal := self._gate.refusal(scope["method"]):
            await refusal.response()(scope, receive, send)
            return
        with self._gate:
            await self._app(scope, receive, send)

    def _with_headers(self, send: Send) -> Send:
        async def add_and_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = MutableHeaders(scope=message)
                added[ReportedLoad.NAME] = self._host.engine_load.report().value()
                added.setdefault(Fingerprint.NAME, self._host.model.fingerprint)
                added[StreamSettings.NAME] = self._host.model.stream_settings
            await send(message)

        return add_and_send
