"""API keys: the accepted keys, and the answer to a request without one."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from engine_server.contract.cluster.engine_keys import parse_key_line
from engine_server.contract.wire.errors import ErrorCode
from engine_server.server.http.errors import ApiError
from engine_server.shared.bearer import bearer_key

if TYPE_CHECKING:
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send


class ApiKeys:
    """The accepted keys, kept as hashes: those that were given, and those in the lines of a file, or their hashes."""

    def __init__(self, keys: Iterable[str], file: Path | None = None) -> None:
        """Raises ValueError if the file can't be read."""
        self._given = [digest(key.encode()) for key in keys if key]
        self._of_file: list[bytes] = []
        self.files = [] if file is None else [file]
        self.reload()

    @property
    def required(self) -> bool:
        """True if requests need a key. A file without any key accepts no request."""
        return bool(self._given or self.files)

    def reload(self) -> None:
        """Read the file again. Raises ValueError, and keeps the keys, if it can't be read."""
        lines: list[bytes] = []
        for file in self.files:
            try:
                lines += file.read_bytes().splitlines()
            except OSError as error:
                raise ValueError(f"the keys in {file} can't be read: {error.strerror}") from error
        self._of_file = [parse_key_line(key) for line in lines if (key := line.strip())]

    def accept(self, candidates: Iterable[bytes]) -> bool:
        """Return True if one of the candidates is a key; the time does not depend on which, nor on the keys."""
        keys = [*self._given, *self._of_file]
        hashes = [digest(candidate) for candidate in candidates]
        matches = [hmac.compare_digest(candidate, key) for candidate in hashes for key in keys]
        return any(matches)


class KeyCheck:
    """ASGI middleware that answers 401 to a request without a key, whatever its path."""

    def __init__(self, app: ASGIApp, keys: ApiKeys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._keys.accept(credentials(scope["headers"])):
            await self._app(scope, receive, send)
        else:
            await unauthorized()(scope, receive, send)


def unauthorized() -> Response:
    """Return the answer to a request without a key."""
    error = ApiError(
        ErrorCode.INVALID_API_KEY,
        "the request has no valid API key; it takes `Authorization: Bearer KEY` or `x-api-key: KEY`",
    )
    response = error.response()
    response.headers["WWW-Authenticate"] = "Bearer"
    return response


def credentials(headers: Iterable[tuple[bytes, bytes]]) -> Iterator[bytes]:
    """Yield the keys that a request's headers carry."""
    for name, value in headers:
        if name == b"x-api-key":
            yield value
        elif name == b"authorization" and (key := bearer_key(value)) is not None:
            yield key


def digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
