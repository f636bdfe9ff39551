"""Traces of the calls to the API server, kopf's and our own: counts by verb and code, and the state of the watches."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace

import aiohttp
from yarl import URL

from llm_operator import metrics
from llm_operator.kinds import Resource

VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


@dataclass(slots=True)
class Watch:
    """The watch of one kind in one namespace, or in the whole cluster if it is empty."""

    resource: Resource
    namespace: str
    is_open: bool = False
    # The time at which the last change of `is_open` happened.
    since: float = field(default_factory=time.monotonic)
    # The time of the last call, to list or to watch, or of its answer.
    called_at: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        age = metrics.WATCH_AGE.labels(self.resource.plural, self.namespace)
        age.set_function(lambda: self.interrupted_seconds)
        # A series that exists before the first restart has a rate from it on.
        metrics.WATCH_RESTARTS.labels(self.resource.plural, self.namespace)

    @property
    def interrupted_seconds(self) -> float:
        return 0.0 if self.is_open else time.monotonic() - self.since

    def open(self) -> None:
        self.is_open, self.since = True, time.monotonic()

    def interrupt(self) -> None:
        if self.is_open:
            metrics.WATCH_RESTARTS.labels(self.resource.plural, self.namespace).inc()
            self.is_open, self.since = False, time.monotonic()


def counting() -> aiohttp.TraceConfig:
    """Return a trace that counts the calls of a session by verb and code."""

    async def answered(_: object, __: SimpleNamespace, call: aiohttp.TraceRequestEndParams) -> None:
        metrics.API_REQUESTS.labels(verb(call.method, call.url), str(call.response.status)).inc()

    async def failed(_: object, __: SimpleNamespace, call: aiohttp.TraceRequestExceptionParams) -> None:
        metrics.API_REQUESTS.labels(verb(call.method, call.url), "none").inc()

    trace = aiohttp.TraceConfig()
    trace.on_request_end.append(answered)
    trace.on_request_exception.append(failed)
    return trace


def following(watches: Iterable[Watch]) -> aiohttp.TraceConfig:
    """Return a trace of kopf's session that records when watches are opened and interrupted, and its calls for them.

    A watch is open from its answer on. kopf calls the same path again, to list or to watch, once it has ended. Other
    calls are those of its discovery, which finds the kinds to watch.
    """
    by_path = {watch.resource.path(watch.namespace): watch for watch in watches}

    def note(url: URL) -> None:
        watch = by_path.get(url.path)
        for affected in (watch,) if watch else by_path.values():
            affected.called_at = time.monotonic()

    async def called(_: object, __: SimpleNamespace, call: aiohttp.TraceRequestStartParams) -> None:
        note(call.url)
        if watch := by_path.get(call.url.path):
            watch.interrupt()

    async def answered(_: object, __: SimpleNamespace, call: aiohttp.TraceRequestEndParams) -> None:
        note(call.url)
        watch = by_path.get(call.url.path)
        if watch and "watch" in call.url.query and call.response.status == 200:
            watch.open()

    async def failed(_: object, __: SimpleNamespace, call: aiohttp.TraceRequestExceptionParams) -> None:
        note(call.url)

    trace = aiohttp.TraceConfig()
    trace.on_request_start.append(called)
    trace.on_request_end.append(answered)
    trace.on_request_exception.append(failed)
    return trace


def verb(method: str, url: URL) -> str:
    """Return the verb of a call, as in RBAC rules."""
    if method != "GET":
        return VERBS.get(method, method.lower())
    if "watch" in url.query:
        return "watch"
    return "list" if is_collection(url.path) else "get"


def is_collection(path: str) -> bool:
    """Return True for the path of a kind's objects, False for that of one object or of another resource."""
    root, *rest = path.strip("/").split("/")
    below = rest[1:] if root == "api" else rest[2:]
    if below[:1] == ["namespaces"] and len(below) > 2:
        below = below[2:]
    return len(below) == 1
