"""The access log: a line for each request, and never its content, its key or its query string."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Protocol

import msgspec

# Lines are written in batches, at the latest after FLUSH_SECONDS.
BATCH_SIZE = 64
FLUSH_SECONDS = 0.25
# A path that the router does not serve can be anything.
MAX_PATH_CHARACTERS = 256


class Access(msgspec.Struct, gc=False, omit_defaults=True):
    """One line of the log."""

    time: datetime
    method: str
    path: str
    status: int
    request_id: str
    # From the request's arrival.
    seconds: float
    seconds_to_first_byte: float | None = None
    # The name in the request, if it means a deployment.
    model: str = ""
    # NAMESPACE/NAME.
    deployment: str = ""
    # The adapter that the name means.
    adapter: str = ""
    # The URL of the engine that was tried last.
    endpoint: str = ""
    # Number of times that the request was sent to an engine, or that a connection for it failed.
    attempts: int = 0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    # The name of the caller's key.
    key: str = ""


class Output(Protocol):
    """A stream that takes text without blocking."""

    def write(self, text: str) -> object: ...


class AccessLog:
    """Writes accesses to an output, several at a time."""

    def __init__(self, output: Output, render: Callable[[Sequence[Access]], str]) -> None:
        self._output = output
        self._render = render
        self._waiting: list[Access] = []

    def record(self, access: Access) -> None:
        """Write an access soon."""
        self._waiting.append(access)
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_later(FLUSH_SECONDS, self.flush)
        elif len(self._waiting) == BATCH_SIZE:
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
        if self._waiting:
            self._output.write(self._render(self._waiting))
            self._waiting.clear()


def render_json(accesses: Sequence[Access]) -> str:
    """Return a line with a JSON object for each access; what does not apply to a request is left out."""
    return _encoder.encode_lines(accesses).decode()


def render_text(accesses: Sequence[Access]) -> str:
    """Return a line of words and NAME=VALUE for each access, in the form of the other lines of the log."""
    return "".join([f"{local_time(access.time)} INFO router: {text_line(access)}\n" for access in accesses])


def local_time(time: datetime) -> str:
    """Return a time as `logging` writes it."""
    local = time.astimezone()
    return f"{local:%Y-%m-%d %H:%M:%S},{local.microsecond // 1000:03d}"


def text_line(access: Access) -> str:
    """Return the line of one access."""
    line = f"{access.method} {access.path} {access.status} {access.seconds:.6f} s id={access.request_id}"
    if access.seconds_to_first_byte is not None:
        line += f" first_byte={access.seconds_to_first_byte:.6f}"
    if access.model:
        line += f" model={access.model}"
    if access.deployment:
        line += f" deployment={access.deployment}"
    if access.adapter:
        line += f" adapter={access.adapter}"
    if access.attempts:
        line += f" endpoint={access.endpoint} attempts={access.attempts}"
    if access.completion_tokens is not None:
        line += f" prompt_tokens={access.prompt_tokens} completion_tokens={access.completion_tokens}"
    if access.key:
        line += f" key={access.key}"
    return line


def logged_path(target: bytes) -> str:
    """Return the path of a target as it can be logged: without the query string, in ASCII, and not too long."""
    return target.partition(b"?")[0][:MAX_PATH_CHARACTERS].decode("ascii", "backslashreplace")


_encoder = msgspec.json.Encoder()
RENDERERS: dict[str, Callable[[Sequence[Access]], str]] = {"text": render_text, "json": render_json}
