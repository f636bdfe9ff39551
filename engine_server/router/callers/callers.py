"""The callers that a router knows, by the keys that they send."""

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter

import msgspec

from engine_server.router import errors
from engine_server.router.callers.account import ANYONE, Account, Caller
from engine_server.router.callers.engine_credentials import EngineCredentials
from engine_server.router.callers.keys import decode_keys, digest_of
from engine_server.router.callers.ledger import Ledger
from engine_server.router.errors import RequestError
from engine_server.router.watched_file import WatchedFile
from engine_server.shared.bearer import bearer_key

log = logging.getLogger(__name__)

# Spellings of `Authorization` whose account is remembered.
MOST_REMEMBERED = 1024


class Callers:
    """Finds the caller of each request. Without a keys file, anyone may call."""

    def __init__(self, keys_file: Path | None = None, engine_key_file: Path | None = None) -> None:
        """Read the files. Raises ValueError if one is not valid."""
        # A client's key for the router is of no use to an engine.
        self.engine_credentials = EngineCredentials(engine_key_file, pass_on=keys_file is None)
        self.ledger = Ledger(perf_counter())
        # By the hash of the key. The time of a lookup depends on the hash alone, from which nothing about other keys
        # follows: a comparison in constant time is not needed.
        self._accounts: dict[bytes, Account] = {}
        # By the field `Authorization`, of valid keys that were sent since the file was read. A lookup compares the
        # field only with one of the same hash, whose seed is a secret of the process: its time shows nothing either.
        self._remembered: dict[bytes, Account] = {}
        self._file = None if keys_file is None else WatchedFile(keys_file)
        if self._file is not None:
            self._file.load(self._apply)

    def identify(self, fields: Mapping[bytes, bytes]) -> Caller:
        """Return the sender of a request with these header fields. Raises RequestError (401) if it has no valid key."""
        if self._file is None:
            return ANYONE
        authorization = fields.get(b"authorization")
        if authorization is not None:
            account = self._remembered.get(authorization) or self._authorize(authorization)
            if account is not None:
                return account
        if b"x-api-key" in fields:
            account = self._accounts.get(digest_of(fields[b"x-api-key"]))
            if account is not None:
                return account
        raise errors.invalid_api_key()

    def name(self, fields: Mapping[bytes, bytes]) -> str:
        """Return the name of the sender's key; empty if it has no valid one, or needs none."""
        account = self._remembered.get(fields.get(b"authorization", b""))
        if account is not None:
            return account.name
        try:
            return self.identify(fields).name
        except RequestError:
            return ""

    def _authorize(self, authorization: bytes) -> Account | None:
        """Return the account of a field `Authorization`, and remember it; None if it has no valid key."""
        key = bearer_key(authorization)
        account = None if key is None else self._accounts.get(digest_of(key))
        if account is not None:
            if len(self._remembered) == MOST_REMEMBERED:
                self._remembered.clear()
            self._remembered[authorization] = account
        return account

    def usage(self) -> bytes:
        """Return the page that other routers ask for."""
        return msgspec.json.encode(self.ledger.report(perf_counter()))

    async def run(self) -> None:
        """Follow changes of the files until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.engine_credentials.run())
            if self._file is not None:
                tasks.create_task(self._file.follow(self._apply))

    def _apply(self, content: bytes) -> None:
        entries = decode_keys(content)
        self.ledger.put(entries)
        self._remembered.clear()
        self._accounts = {entry.digest: self.ledger.accounts[entry.name] for entry in entries}
        log.info("keys of %d callers are in force", len(entries))
