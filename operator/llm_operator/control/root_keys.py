"""The root keys, from which the keys of each deployment are derived."""

import asyncio
import base64
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from engine_server.contract.cluster.engine_keys import INTERNAL_PAGES, derive_key, hash_line, parse_root_keys
from llm_operator.control.api_errors import FAILURES, describe
from llm_operator.control.cluster import Cluster
from llm_operator.kinds import SECRETS
from llm_operator.observed import KeyHashes

# The entry of a Secret that has root keys.
ENTRY = "keys"
# Of a new key.
RANDOM_BYTES = 36
POLL_SECONDS = 5.0

logger = logging.getLogger(__name__)


class KeySecrets(NamedTuple):
    """The names of the Secrets with the root keys of the router, None if engines ask for none, and of the operator."""

    router: str | None
    admin: str


@dataclass(slots=True)
class RootKeys:
    """The root keys in Secrets, which are read again at an interval.

    Without the entry a Secret gets a random key, so that whoever creates it need not know one.
    """

    cluster: Cluster
    namespace: str
    names: KeySecrets
    # The keys, and the last problem, by the name of the Secret.
    known: dict[str, tuple[bytes, ...]] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)

    def hashes(self, uid: str) -> KeyHashes:
        """Return the lines of the key files of the LLMDeployment with this UID."""
        return KeyHashes(
            hashes(self._roots(self.names.router), uid), hashes(self._roots(self.names.admin), uid)
        )

    def admin_key(self, uid: str) -> str:
        """Return the key for the admin API of the LLMDeployment with this UID; empty while none is known."""
        roots = self._roots(self.names.admin)
        return derive_key(roots[0], uid) if roots else ""

    def internal_key(self) -> str:
        """Return the key for the internal pages of routers; empty where these have no root key, or it is not known."""
        roots = self._roots(self.names.router)
        return derive_key(roots[0], INTERNAL_PAGES) if roots else ""

    async def load(self) -> None:
        """Read the Secrets. Where engines ask for the router's keys, wait until all are known."""
        await self._read_all()
        while self.names.router is not None and not self._are_known():
            await asyncio.sleep(POLL_SECONDS)
            await self._read_all()

    async def follow(self, on_change: Callable[[], object]) -> None:
        """Call `on_change` after each change of the keys, until cancelled."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            before = dict(self.known)
            await self._read_all()
            if self.known != before:
                logger.info("the root keys have changed")
                on_change()

    def _roots(self, name: str | None) -> tuple[bytes, ...]:
        return self.known.get(name, ()) if name is not None else ()

    def _are_known(self) -> bool:
        return self.known.keys() == set(filter(None, self.names))

    async def _read_all(self) -> None:
        """Read the Secrets. The keys of one that cannot be read or used stay as they were."""
        for name in filter(None, self.names):
            try:
                self.known[name] = await self._read(name)
            except (*FAILURES, ValueError) as error:
                problem = str(error) if isinstance(error, ValueError) else describe(error)
                if problem != self.problems.get(name):
                    logger.warning("no root keys from the Secret %s/%s: %s", self.namespace, name, problem)
                self.problems[name] = problem
            else:
                self.problems.pop(name, None)

    async def _read(self, name: str) -> tuple[bytes, ...]:
        secret = await self.cluster.call("GET", SECRETS.path(self.namespace, name))
        content = (secret.get("data") or {}).get(ENTRY)
        if content is not None:
            return parse_root_keys(base64.b64decode(content, validate=True))
        keys = self.known.get(name) or (secrets.token_urlsafe(RANDOM_BYTES).encode(),)
        await self._write(name, keys, secret["metadata"]["resourceVersion"])
        return keys

    async def _write(self, name: str, keys: tuple[bytes, ...], resource_version: str) -> None:
        """Write keys into a Secret that still has this resource version."""
        content = base64.b64encode(b"\n".join(keys)).decode()
        change = {"metadata": {"resourceVersion": resource_version}, "data": {ENTRY: content}}
        path = SECRETS.path(self.namespace, name)
        await self.cluster.patch(path, change)
        logger.info("wrote root keys into the Secret %s/%s, which had none", self.namespace, name)


def hashes(roots: tuple[bytes, ...], uid: str) -> tuple[str, ...]:
    return tuple(hash_line(derive_key(root, uid)) for root in roots)
