"""The Lease that lets one operator of several work."""

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime

from llm_operator.control.cluster import FAILURES, Cluster, Resource, described_failure
from llm_operator.observed import Manifest

LEASES = Resource("coordination.k8s.io", "v1", "leases")
DURATION_SECONDS = 15  # a holder that is silent for so long has lost it
GIVE_UP_SECONDS = 10  # a holder that cannot renew stops well before another may start
RENEW_SECONDS = 3
RETRY_SECONDS = 1

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Lease:
    """Clocks of others are not trusted: a lease has run out when it stood still for its time on ours."""

    cluster: Cluster
    namespace: str
    name: str
    identity: str
    seen: Manifest = field(default_factory=dict)  # as it was last time
    seen_at: float = 0.0

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def holder(self) -> str:
        return str(self.seen.get("spec", {}).get("holderIdentity", ""))

    async def acquire(self) -> None:
        """Returns once this operator is the one."""
        holder = None
        while not await self.hold():
            if self.holder != holder:
                holder = self.holder
                logger.info("standing by: %s holds %s", holder, self)
            await asyncio.sleep(RETRY_SECONDS)
        logger.info("this operator holds %s", self)

    async def keep(self) -> None:
        """Returns when the lease is lost."""
        with suppress(TimeoutError):
            while True:
                await asyncio.sleep(RENEW_SECONDS)
                async with asyncio.timeout(GIVE_UP_SECONDS):
                    while not await self.hold():
                        if self.holder != self.identity:
                            return
                        await asyncio.sleep(RETRY_SECONDS)

    async def release(self) -> None:
        """Lets the next operator start at once."""
        if self.holder == self.identity:
            try:
                await self.write("")
            except FAILURES as error:
                logger.warning("could not release the lease: %s", described_failure(error))

    async def hold(self) -> bool:
        """Takes or renews it; False where another has it, or where the API server does not answer."""
        try:
            await self.look()
            age = asyncio.get_running_loop().time() - self.seen_at
            if self.holder not in ("", self.identity) and age < DURATION_SECONDS:
                return False
            await self.write(self.identity)
        except FAILURES as error:
            logger.warning("lease %s: %s", self, described_failure(error))
            return False
        return True

    async def look(self) -> None:
        """What it says now, and since when; where there is none it is made."""
        folder = LEASES.path(self.namespace)
        found = await self.cluster.find(f"{folder}/{self.name}")
        found = found or await self.cluster.call("POST", folder, {"metadata": {"name": self.name}})
        if found.get("spec") != self.seen.get("spec"):
            self.seen_at = asyncio.get_running_loop().time()
        self.seen = found

    async def write(self, holder: str) -> None:
        """The resource version in what was seen lets one of two writers win."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        last = self.seen.get("spec", {})  # whoever installs us may have made it without
        changed = {"holderIdentity": holder, "leaseDurationSeconds": DURATION_SECONDS, "renewTime": now}
        if holder != self.holder:
            changed |= {"acquireTime": now, "leaseTransitions": last.get("leaseTransitions", 0) + 1}
        lease = {**self.seen, "spec": last | changed}
        self.seen = await self.cluster.call("PUT", LEASES.path(self.namespace, self.name), lease)
