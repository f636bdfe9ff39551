"""The bodies of answers that may come from anything that listens at an address."""

from collections.abc import AsyncIterable


async def read_at_most(limit: int, parts: AsyncIterable[bytes]) -> bytes:
    """Return a body that arrives in parts. Raises ValueError if it has more than `limit` bytes."""
    body = bytearray()
    async for part in parts:
        body += part
        if len(body) > limit:
            raise ValueError(f"the answer has more than {limit} bytes")
    return bytes(body)
