"""The lines of a stream of bytes."""

from collections.abc import AsyncIterable, AsyncIterator


async def lines(parts: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Yield complete lines of any length: an object of the cluster can exceed the limit of aiohttp's own readline."""
    rest: list[bytes] = []
    async for data in parts:
        *complete, last = data.split(b"\n")
        if complete:
            complete[0] = b"".join((*rest, complete[0]))
            rest.clear()
        rest.append(last)
        for line in complete:
            if line:
                yield line
