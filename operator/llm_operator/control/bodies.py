"""The bodies of answers that may come from anything that listens at an address."""

import aiohttp


async def body_of(answer: aiohttp.ClientResponse, largest: int) -> bytes:
    """Return the body of an answer. Raises ValueError if it has more than `largest` bytes."""
    body = bytearray()
    async for part in answer.content.iter_any():
        body += part
        if len(body) > largest:
            raise ValueError(f"the answer has more than {largest} bytes")
    return bytes(body)
