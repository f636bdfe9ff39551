"""Requests with keys, and the file of keys, for the tests of a router."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

import yaml

from engine_server.router.callers.keys import digest_of

KEY = "fl-the-key-of-team-a"
OTHER_KEY = "fl-the-key-of-team-b"
CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"


@dataclass
class KeysFile:
    path: Path

    def write(self, *entries: dict) -> Path:
        """Replace the file by one with these entries, which have a name and a key."""
        fresh = self.path.with_suffix(".new")
        content = [
            {"sha256": digest_of(key.encode()).hex(), **entry}
            for entry, key in zip(entries, (KEY, OTHER_KEY), strict=False)
        ]
        fresh.write_text(yaml.safe_dump(content))
        return fresh.replace(self.path)


def bearer(key: str = KEY) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def ask(router, model: str = "m", *, headers=None, path: str = CHAT, **body):
    headers = bearer() if headers is None else headers
    return router.session.post(router.url + path, json={"model": model, **body}, headers=headers)


async def status_of(request) -> int:
    async with request as response:
        await response.read()
        return response.status


def reporting(prompt: int, completion: int):
    """Return the behavior of an engine that reports these tokens."""

    async def behave(engine, request, writer):
        usage = b"Fairlead-Usage: prompt=%d, completion=%d\r\n" % (prompt, completion)
        writer.write(b"HTTP/1.1 200 OK\r\n%bContent-Length: 2\r\n\r\n{}" % usage)

    return behave


async def never_answer(engine, request, writer):
    await asyncio.Event().wait()


async def usage(router) -> dict:
    async with router.internal("/internal/usage") as response:
        return (await response.json())["keys"]
