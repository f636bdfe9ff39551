"""The watches of kopf. Handlers only fill the store, so kopf leaves no finalizer or annotation on any object."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import aiohttp
import kopf
from kopf._cogs.clients import watching

from engine_server.contract.cluster.api import Key
from engine_server.contract.cluster.labels import LLMDEPLOYMENT_LABEL
from engine_server.contract.cluster.page_size import AnswerTooLargeError
from llm_operator.control.cluster import REQUEST_SECONDS, Access, reload_credentials
from llm_operator.control.queue import WorkQueue
from llm_operator.control.resources import LLMDEPLOYMENTS, WATCHED, Resource
from llm_operator.control.turns import Priority
from llm_operator.control.watching.pages import KOPF_PAGE_SIZE, Pages
from llm_operator.control.watching.shallow_response import ShallowResponse
from llm_operator.control.watching.store import Ref, Store, version_of

Event = Mapping[str, Any]
Handler = Callable[..., Awaitable[None]]

CONNECT_SECONDS = 5
RETRY_SECONDS = 1.0
LOGIN_PAUSE_SECONDS = 1


def registry(
    store: Store,
    queue: WorkQueue,
    configuration: Access,
    pages: Pages,
    trace_configs: Sequence[aiohttp.TraceConfig],
) -> kopf.OperatorRegistry:
    """Return the handlers that keep `store` up to date, and queue the LLMDeployments for which it changes."""
    handlers = kopf.OperatorRegistry()
    kopf.on.login(registry=handlers)(login(configuration, pages, trace_configs))
    watch: Callable[..., Any] = kopf.on.event
    for resource in WATCHED:
        watch(*resource, registry=handlers)(on_event(resource, store, queue))
    return handlers


def login(
    configuration: Access, pages: Pages, trace_configs: Sequence[aiohttp.TraceConfig]
) -> Callable[..., Awaitable[kopf.AiohttpSession]]:
    logins = 0

    async def login(**_: Any) -> kopf.AiohttpSession:
        """Return a session with the credentials that our own calls use. kopf asks again when they were refused."""
        nonlocal logins
        if logins:
            await asyncio.sleep(LOGIN_PAUSE_SECONDS)
            await reload_credentials(configuration)
        logins += 1
        header = await configuration.get_api_key_with_prefix("BearerToken")
        access = kopf.ConnectionInfo(
            server=configuration.host,
            ca_path=configuration.ssl_ca_cert,
            insecure=not configuration.verify_ssl,
            token=header.split(" ", 1)[-1] if header else None,
            certificate_path=configuration.cert_file,
            private_key_path=configuration.key_file,
        )
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=access.as_ssl_context()),
            headers=access.as_http_headers(),
            response_class=ShallowResponse,
            middlewares=[small_pages(pages)],
            trace_configs=list(trace_configs),
        )
        return kopf.AiohttpSession(server=configuration.host, aiohttp_session=session)

    return login


def small_pages(pages: Pages) -> aiohttp.ClientMiddlewareType:
    """Return a middleware that gives the pages of each kind their size. kopf has one size for all kinds."""
    kinds = {resource.plural: resource for resource in WATCHED}

    async def ask(
        request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        resource = kinds.get(request.url.name)
        if resource is None or "limit" not in request.url.query:
            return await handler(request)
        size = pages.of(resource)
        while True:
            request.url = request.url.update_query(limit=min(KOPF_PAGE_SIZE, size.limit))
            response = None
            try:
                response = await handler(request)
                await response.read()
                return response
            except AnswerTooLargeError:
                if response is not None:
                    response.close()
                if not size.refused():
                    raise
            # The session's time is up.
            except (TimeoutError, asyncio.CancelledError):
                size.refused()
                raise

    return ask


def on_event(resource: Resource, store: Store, queue: WorkQueue) -> Handler:
    async def changed(event: Event, **_: Any) -> None:
        manifest = event["object"]
        if event["type"] == "DELETED":
            affected = store.remove(Ref.of(resource, manifest), version_of(manifest))
        else:
            affected = store.put(resource, manifest)
        edited = Key.of(manifest) if resource == LLMDEPLOYMENTS else None
        for key in affected:  # others when a name that they claim has another holder
            queue.add(key, Priority.EDIT if key == edited else Priority.EVENT)

    return changed


class EndlessRetries(Iterable[float]):
    """The pauses between the attempts of a call. After a last attempt kopf would end."""

    def __iter__(self) -> Iterator[float]:
        return itertools.repeat(RETRY_SECONDS)


class NothingToCompare(kopf.DiffBaseStorage):
    """Keep no former states of objects. kopf would copy each object at each event to find what has changed in it."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        return kopf.BodyEssence()

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        """Do nothing."""


def never_paused(**_: Any) -> nullcontext[asyncio.Future[None]]:
    """Return the context of a watch that kopf never pauses: it would for another operator, of which it knows none.

    kopf's own context is a generator inside that of the watch. When a watch stops amid a list, both are left to the
    garbage collector or to the event loop's end, and an error is logged if the inner one is closed first.
    """
    return nullcontext(asyncio.get_running_loop().create_future())


watching.streaming_block = never_paused  # type: ignore[assignment]


def settings(watch_silence_seconds: float) -> kopf.OperatorSettings:
    """Return kopf's settings."""
    chosen = kopf.OperatorSettings()
    # Our Lease elects the operator that works.
    chosen.peering.standalone = True
    # Namespaces and definitions are not watched, since that needs cluster-wide rights.
    chosen.scanning.disabled = True
    chosen.posting.enabled = False
    chosen.persistence.diffbase_storage = NothingToCompare()
    chosen.networking.request_timeout = REQUEST_SECONDS
    chosen.networking.connect_timeout = CONNECT_SECONDS
    chosen.networking.error_backoffs = EndlessRetries()
    chosen.watching.connect_timeout = CONNECT_SECONDS
    chosen.watching.inactivity_timeout = watch_silence_seconds
    # Handlers do not block; a part of kopf that is started again must not end the process.
    chosen.process.ultimate_exiting_timeout = None
    # A worker that waits for more events keeps its last object in memory.
    chosen.queueing.idle_timeout = 0.1
    chosen.watching.chunk_size = KOPF_PAGE_SIZE
    for resource in WATCHED:
        if resource != LLMDEPLOYMENTS:
            chosen.watching.label_selectors[*resource] = LLMDEPLOYMENT_LABEL
    return chosen
