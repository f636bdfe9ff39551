"""The rules for requests of web pages: the names by which they reach the server, and their origins."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from starlette.middleware.cors import CORSMiddleware

from engine_server.contract.base.quoting import quote
from engine_server.contract.wire.errors import ErrorCode
from engine_server.server.http.errors import ApiError
from engine_server.shared.hosts import Hosts, host_name

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

# Pages of this machine.
LOOPBACK_ORIGIN = r"https?://(localhost|([-_a-z0-9]+\.)+localhost|127(\.[0-9]+){3}|\[::1\])(:[0-9]+)?"
OWN_SITES = (b"none", b"same-origin")


class HostCheck:
    """ASGI middleware that answers 403 to requests by a name that may be another site's."""

    def __init__(self, app: ASGIApp, hosts: Hosts) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        host = dict(scope["headers"]).get(b"host", b"")
        if self._hosts.accept(host):
            await self._app(scope, receive, send)
            return
        message = (
            f"{quote(host.decode('latin-1'))} is no name of this server, which listens on a loopback address; "
            "--allow-host NAME allows one"
        )
        await ApiError(ErrorCode.UNKNOWN_HOST, message).response()(scope, receive, send)


class NoPages:
    """ASGI middleware that answers 403 to requests of web pages, which a browser marks as such."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        fields = dict(scope["headers"])
        if b"origin" not in fields and fields.get(b"sec-fetch-site", b"none") in OWN_SITES:
            await self._app(scope, receive, send)
            return
        error = ApiError(ErrorCode.FOREIGN_ORIGIN, "the admin API takes no requests of web pages")
        await error.response()(scope, receive, send)


class CrossOrigin:
    """ASGI middleware with the fields by which browsers show answers to pages of other origins.

    Unless origins are given, these are pages of this machine. A page on another port of the server's own host is no
    stranger to it either.
    """

    def __init__(
        self,
        app: ASGIApp,
        origins: Sequence[str] | None,
        *,
        methods: Sequence[str],
        headers: Sequence[str],
        credentials: bool,
    ) -> None:
        cors = partial(
            CORSMiddleware, app, allow_methods=methods, allow_headers=headers, allow_credentials=credentials
        )
        if origins is None:
            self._listed = cors(allow_origin_regex=LOOPBACK_ORIGIN)
        else:
            self._listed = cors(allow_origins=origins)
        self._own = cors(allow_origin_regex=".*")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        fields = dict(scope["headers"])
        cors = self._own if is_own(fields.get(b"origin", b""), fields.get(b"host", b"")) else self._listed
        await cors(scope, receive, send)


def is_own(origin: bytes, host: bytes) -> bool:
    """Return True for the origin of a page on the host that it calls."""
    scheme, separator, rest = origin.partition(b"://")
    return bool(separator) and scheme in (b"http", b"https") and host_name(rest) == host_name(host)
