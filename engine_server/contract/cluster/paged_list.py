"""A list of Kubernetes, read page by page."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

import msgspec

from engine_server.contract.base.nesting import decode_shallow
from engine_server.contract.cluster.page_size import AnswerTooLargeError, PageSize


class ListMetadata(msgspec.Struct, frozen=True):
    resource_version: str = msgspec.field(name="resourceVersion")
    # The token of the next page; empty on the last.
    next_page: str = msgspec.field(name="continue", default="")


class ListPage(msgspec.Struct, frozen=True):
    """One page of a list. Most of its items are known already, and stay undecoded."""

    metadata: ListMetadata
    items: tuple[msgspec.Raw, ...]


# Asks for a page with a query, and returns its text. Raises AnswerTooLargeError for more bytes than this number; None:
# reads any number.
Ask = Callable[[Mapping[str, str], int | None], Awaitable[bytes]]

PAGE = msgspec.json.Decoder(ListPage)


async def pages(ask: Ask, query: Mapping[str, str], size: PageSize) -> AsyncIterator[ListPage]:
    """Yield the pages of a list. Raises what `ask` raises, and msgspec.MsgspecError.

    A smaller page is asked for if one is too large, or does not come in time.
    """
    position: Mapping[str, str] = {}
    while True:
        try:
            text = await ask({**query, **position, "limit": str(size.limit)}, size.largest)
        except (TimeoutError, AnswerTooLargeError):
            if not size.refused():
                raise
            continue
        page = decode_shallow(PAGE.decode, text)
        size.answered(len(page.items), len(text))
        yield page
        if not page.metadata.next_page:
            return
        position = {"continue": page.metadata.next_page}
