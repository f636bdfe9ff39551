"""The sessions in which kopf calls the API server: with our credentials, in bounded pages, counted and traced."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp
import kopf

from engine_server.contract.cluster.page_size import AnswerTooLargeError
from llm_operator.control.cluster import Access, reload_credentials
from llm_operator.control.tracing import Watch, counting, following
from llm_operator.control.watching.pages import KOPF_PAGE_SIZE, Pages
from llm_operator.control.watching.shallow_response import ShallowResponse
from llm_operator.kinds import WATCHED

# Before credentials that were refused are read again.
PAUSE_SECONDS = 1


@dataclass(slots=True)
class Sessions:
    """The successive sessions of one run of kopf."""

    configuration: Access
    pages: Pages
    watches: Sequence[Watch]
    opened: int = 0

    async def open(self) -> kopf.AiohttpSession:
        """Return a new session; from the second one on after a pause, with credentials that are read again."""
        if self.opened:
            await asyncio.sleep(PAUSE_SECONDS)
            await reload_credentials(self.configuration)
        self.opened += 1
        configuration = self.configuration
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
            middlewares=[small_pages(self.pages)],
            trace_configs=[counting(), following(self.watches)],
        )
        return kopf.AiohttpSession(server=configuration.host, aiohttp_session=session)


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
