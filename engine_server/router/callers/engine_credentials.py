"""The header lines by which engines recognise the router, and the callers of its requests."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

from engine_server.contract.base.caller import ReportedCaller, pseudonym
from engine_server.contract.cluster.api import Key
from engine_server.contract.cluster.engine_keys import INTERNAL_PAGES, derive_key, parse_root_keys
from engine_server.contract.wire.router_head import caller_line
from engine_server.router.callers.account import Caller
from engine_server.router.callers.endpoint_keys import EndpointKeys
from engine_server.router.callers.keys import digest_of
from engine_server.router.http.forwarded_fields import CREDENTIAL_FIELDS
from engine_server.router.routing.directory import Deployment
from engine_server.router.watched_file import WatchedFile
from engine_server.shared.bearer import bearer_key


class EngineCredentials:
    """The header lines with the credentials for engines, and with the caller where both have keys.

    They are the deployment's own where it has a file with a key, and else the router's own where there is a root key.
    Else they are those of the client, unless these are meant for the router itself, or are not to reach the engines of
    the deployment.
    """

    def __init__(self, root_key_file: Path | None = None, *, pass_on: bool = True) -> None:
        """Pass on clients' credentials if there is no file. Raises ValueError if the file has no key."""
        self._pass_on = pass_on
        self._file = None if root_key_file is None else WatchedFile(root_key_file)
        self._root = b""
        self.endpoint_keys = EndpointKeys()
        # Of the internal pages: what this router sends to others, and what it accepts from them.
        self.internal_headers: dict[str, str] = {}
        self._internal_digests: tuple[bytes, ...] = ()
        # By deployment, with the message that each was derived from.
        self._lines: dict[Key, tuple[str, bytes]] = {}
        # By name, with the scope and the priority that each was written for.
        self._caller_lines: dict[str, tuple[str, int, bytes]] = {}
        if self._file is not None:
            self._file.load(self._apply)

    def lines(self, fields: dict[bytes, bytes], deployment: Deployment, caller: Caller) -> bytes:
        """Return the lines for a caller's request with these fields to this deployment."""
        if deployment.key_file is not None:
            return self.endpoint_keys.line(deployment.key_file)
        if self._file is not None:
            return self._derived(deployment) + self._caller_line(caller)
        if not (self._pass_on and deployment.takes_credentials):
            return b""
        if not (b"authorization" in fields or b"x-api-key" in fields):
            return b""
        return b"".join(b"%b: %b\r\n" % (name, fields[name]) for name in CREDENTIAL_FIELDS if name in fields)

    def accepts_internal(self, fields: Mapping[bytes, bytes]) -> bool:
        """Return True for the fields of a request for an internal page that comes from a router or the operator."""
        key = bearer_key(fields.get(b"authorization", b""))
        return key is not None and digest_of(key) in self._internal_digests

    def cache_scope(self, caller: Caller) -> str:
        """Return the scope in which engines cache the caller's prompts; empty if they are not told."""
        return caller.cache_scope if self._file is not None else ""

    async def run(self) -> None:
        """Follow changes of the files until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.endpoint_keys.run())
            if self._file is not None:
                tasks.create_task(self._file.follow(self._apply))

    def _derived(self, deployment: Deployment) -> bytes:
        message = deployment.uid or str(deployment.key)
        known, lines = self._lines.get(deployment.key, ("", b""))
        if known != message:
            lines = b"Authorization: Bearer %b\r\n" % derive_key(self._root, message).encode()
            self._lines[deployment.key] = message, lines
        return lines

    def _caller_line(self, caller: Caller) -> bytes:
        name, scope, priority = caller.name, caller.cache_scope, caller.priority
        if not name:
            return b""
        known = self._caller_lines.get(name)
        if known is None or known[:2] != (scope, priority):
            reported = ReportedCaller(
                pseudonym(self._root, "caller", name), pseudonym(self._root, "scope", scope), -priority
            )
            known = scope, priority, caller_line(reported)
            self._caller_lines[name] = known
        return known[2]

    def _apply(self, content: bytes) -> None:
        roots = parse_root_keys(content)
        self._root = roots[0]
        own, *others = (derive_key(root, INTERNAL_PAGES) for root in roots)
        self.internal_headers = {"Authorization": f"Bearer {own}"}
        self._internal_digests = tuple(digest_of(key.encode()) for key in (own, *others))
        self._lines.clear()
        self._caller_lines.clear()
