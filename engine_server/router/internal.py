"""The pages on the internal port: they name namespaces and pods, so that clients must not reach them."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from engine_server.contract.wire.errors import ErrorCode
from engine_server.router import errors
from engine_server.router.errors import RequestError
from engine_server.router.http.exchange import Exchange
from engine_server.router.rejections import Reason, Rejections, Sender
from engine_server.shared.addresses import site
from engine_server.shared.hosts import Hosts

GUARDED = b"/internal/"


class Page(NamedTuple):
    """A page that is rendered at each request."""

    content_type: bytes
    render: Callable[[], bytes]


class InternalApplication:
    """Answers GET requests for a fixed set of pages."""

    def __init__(
        self,
        pages: Mapping[bytes, Page],
        rejections: Rejections,
        hosts: Hosts | None,
        accepts: Callable[[Mapping[bytes, bytes]], bool] | None,
    ) -> None:
        """Serve `pages`, by path, to requests for `hosts`, or for all.

        Those below /internal/ are for requests whose fields `accepts` takes, or for all.
        """
        self._accepts = accepts
        self._pages = pages
        self._rejections = rejections
        self._hosts = hosts

    async def answer(self, exchange: Exchange) -> None:
        """Answer the exchange's request. Raises RequestError for an unknown host or path, or another method."""
        path, host = exchange.request.path, exchange.request.fields.get(b"host", b"")
        if self._hosts is not None and not self._hosts.accept(host):
            self._rejections.add(Sender.CLIENT, Reason.UNKNOWN_HOST)
            raise errors.unknown_host(host)
        accepts = self._accepts if path.startswith(GUARDED) else None
        if accepts is not None and not accepts(exchange.request.fields):
            raise errors.invalid_internal_key()
        page = self._pages.get(path)
        if page is None:
            raise errors.unknown_path(path)
        if exchange.request.method not in (b"GET", b"HEAD"):
            raise errors.wrong_method(path, b"GET, HEAD")
        exchange.respond(200, page.render(), page.content_type)

    def check_sender(self, fields: Mapping[bytes, bytes]) -> None:
        """Accept any sender: the port is internal, and takes no bodies."""

    def owner(self, fields: Mapping[bytes, bytes], peer: str) -> str:
        """Return the sender's address."""
        return peer

    def address(self, peer: str, forwarded_for: bytes | None) -> str:
        """Return the address of a client on a connection from `peer`: proxies aren't known here."""
        return site(peer)

    async def refuse(self, exchange: Exchange, error: RequestError) -> None:
        """Raise the error of a request that was not received whole."""
        if error.code is ErrorCode.BODY_TOO_LARGE:
            self._rejections.add(Sender.CLIENT, Reason.UNEXPECTED_BODY)
        raise error
