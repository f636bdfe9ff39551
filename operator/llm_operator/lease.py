"""The Lease that lets one operator of several work."""

import asyncio
import logging
from dataclasses import dataclass
from datetime import UTC, datetime

from llm_operator.cluster import FAILURES, Cluster, described_failure
from llm_operator.observed import Manifest

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
    seen: Manifest | None = None  # the record as it was last time
    seen_at: float = 0.0

    @property
    def holder(self) -> str:
        return str((self.seen or {}).get("spec", {}).get("holderIdentity") or "")

    @property
    def path(self) -> str:
        return f"apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases"

    async def acquire(self) -> None:
        """Returns once this operator is the one."""
        holder = None
        while not await self.hold():
            if self.holder != holder:
                holder = self.holder
                logger.info("standing by: %s holds %s/%s", holder, self.namespace, self.name)
            await asyncio.sleep(RETRY_SECONDS)
        logger.info("this operator holds %s/%s", self.namespace, self.name)

    async def keep(self) -> None:
        """Returns when the lease is lost."""
        try:
            while True:
                await asyncio.sleep(RENEW_SECONDS)
                async with asyncio.timeout(GIVE_UP_SECONDS):
                    while not await self.hold():
                        if self.holder != self.identity:
                            return
                        await asyncio.sleep(RETRY_SECONDS)
        except TimeoutError:
            return

    async def release(self) -> None:
        """Lets the next operator start at once."""
        if self.seen is not None and self.holder == self.identity:
            try:
                await self.write(self.seen, holder="")
            except FAILURES as error:
                logger.warning("could not release the lease: %s", described_failure(error))

    async def hold(self) -> bool:
        """Takes or renews it; False where another has it, or where the API server does not answer."""
        try:
            found = await self.cluster.find(f"{self.path}/{self.name}")
            if found is not None:
                found.setdefault("spec", {})  # whoever installs us may have made it
            if found is not None and self.is_held(found):
                return False
            self.seen = await self.write(found, holder=self.identity)
        except FAILURES as error:
            logger.warning("lease %s/%s: %s", self.namespace, self.name, described_failure(error))
            return False
        return True

    def is_held(self, found: Manifest) -> bool:
        """Whether another holds it and has shown life lately."""
        now = asyncio.get_running_loop().time()
        if self.seen is None or self.seen["spec"] != found["spec"]:
            self.seen_at = now
        self.seen = found
        ran_out = now - self.seen_at >= found["spec"].get("leaseDurationSeconds", DURATION_SECONDS)
        return self.holder not in ("", self.identity) and not ran_out

    async def write(self, last: Manifest | None, holder: str) -> Manifest:
        """The resource version in `last` lets one of two writers win."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {"holderIdentity": holder, "leaseDurationSeconds": DURATION_SECONDS, "renewTime": now}
        if last is None:
            body = {"metadata": {"name": self.name}, "spec": spec | {"acquireTime": now}}
            return await self.cluster.call("POST", self.path, body)
        same = last["spec"].get("holderIdentity") == holder
        spec["acquireTime"] = last["spec"].get("acquireTime", now) if same else now
        spec["leaseTransitions"] = last["spec"].get("leaseTransitions", 0) + (not same)
        return await self.cluster.call("PUT", f"{self.path}/{self.name}", {**last, "spec": spec})
