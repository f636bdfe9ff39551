"""The Lease that lets one of several operators work."""

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime

from llm_operator.control.api_errors import FAILURES, describe
from llm_operator.control.cluster import Cluster
from llm_operator.kinds import Resource
from llm_operator.observed import Manifest

LEASES = Resource("coordination.k8s.io", "v1", "leases")
# A holder that has not renewed the lease for so long has lost it.
DURATION_SECONDS = 15
# A holder that cannot renew stops well before another one may start.
GIVE_UP_SECONDS = 10
RENEW_SECONDS = 3
RETRY_SECONDS = 1
# A call that is not answered by then is made again, so that an outage is noticed to end.
CALL_SECONDS = 3

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Lease:
    """A lease that this operator tries to hold.

    Clocks of other machines are not trusted: a lease has expired when it has not changed for its duration on ours. So
    has one that nobody has held yet: it may be in place of one that was deleted, whose holder still works.
    """

    cluster: Cluster
    namespace: str
    name: str
    identity: str
    # The lease as it was read last, and the event loop's time at which it last changed.
    seen: Manifest = field(default_factory=dict)
    seen_at: float = 0.0

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def holder(self) -> str:
        return str(self.seen.get("spec", {}).get("holderIdentity", ""))

    @property
    def is_released(self) -> bool:
        """True if the last holder has given the lease up."""
        return bool(self.seen.get("spec", {}).get("holderIdentity") == "")

    async def acquire(self) -> None:
        """Wait until this operator holds the lease."""
        holder = None
        while not await self.hold():
            if self.holder != holder:
                holder = self.holder
                logger.info(
                    "standing by: %s holds %s", holder or "possibly an operator that had one before", self
                )
            await asyncio.sleep(RETRY_SECONDS)
        logger.info("this operator holds %s", self)

    async def keep(self) -> None:
        """Renew the lease; return when another operator has it, or when it could not be renewed for long."""
        with suppress(TimeoutError):
            while True:
                await asyncio.sleep(RENEW_SECONDS)
                async with asyncio.timeout(GIVE_UP_SECONDS):
                    if not await self.regain():
                        return

    async def regain(self) -> bool:
        """Renew the lease as soon as the API server answers; return False if another operator has it."""
        while not await self.hold():
            if self.holder != self.identity:
                return False
            await asyncio.sleep(RETRY_SECONDS)
        return True

    async def release(self) -> None:
        """Give the lease up, so that the next operator can start at once."""
        if self.holder == self.identity:
            try:
                async with asyncio.timeout(CALL_SECONDS):
                    await self.write("")
            except FAILURES as error:
                logger.warning("could not release the lease: %s", describe(error))

    async def hold(self) -> bool:
        """Take or renew the lease; return False if another operator has it or the API server does not answer."""
        try:
            async with asyncio.timeout(CALL_SECONDS):
                held_before = self.holder == self.identity
                await self.look()
                age = asyncio.get_running_loop().time() - self.seen_at
                is_ours = self.holder == self.identity or (held_before and not self.holder)
                if not (is_ours or self.is_released) and age < DURATION_SECONDS:
                    return False
                await self.write(self.identity)
        except FAILURES as error:
            logger.warning("lease %s: %s", self, describe(error))
            return False
        return True

    async def look(self) -> None:
        """Read the lease, or create it, and note when it changed."""
        folder = LEASES.path(self.namespace)
        found = await self.cluster.find(f"{folder}/{self.name}")
        found = found or await self.cluster.call("POST", folder, {"metadata": {"name": self.name}})
        if not self.seen or found.get("spec") != self.seen.get("spec"):
            self.seen_at = asyncio.get_running_loop().time()
        self.seen = found

    async def write(self, holder: str) -> None:
        """Write the lease. Of two writers one fails, because the resource version was read with it."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        # A new lease has no spec.
        last = self.seen.get("spec", {})
        changed = {"holderIdentity": holder, "leaseDurationSeconds": DURATION_SECONDS, "renewTime": now}
        if holder != self.holder:
            changed |= {"acquireTime": now, "leaseTransitions": last.get("leaseTransitions", 0) + 1}
        lease = {**self.seen, "spec": last | changed}
        self.seen = await self.cluster.call("PUT", LEASES.path(self.namespace, self.name), lease)
