"""The custody of LLMDeployments: of several operators that watch the same object, the first one manages it."""

import logging
from dataclasses import dataclass, field

from engine_server.contract.cluster.api import Key
from llm_operator import metrics
from llm_operator.control.cluster import Cluster
from llm_operator.control.watching.store import Ref, Store
from llm_operator.kinds import LLMDEPLOYMENTS
from llm_operator.observed import Manifest

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Custody:
    """Records in `status.operator` that this operator manages an object, and respects the records of others."""

    cluster: Cluster
    store: Store
    # The Lease of this operator as NAMESPACE/NAME: replicas of one installation share it, and no others do.
    operator: str
    # Take objects that another operator manages.
    take_over: bool = False
    # Objects that another operator manages, with that operator.
    foreign: dict[Key, str] = field(default_factory=dict)

    async def take(self, key: Key, manifest: Manifest) -> bool:
        """Return True if this operator manages the object; one that nobody manages is recorded as its own.

        Raises ApiException with status 409 if the object has changed meanwhile: another operator may have taken it.
        """
        holder = str(manifest.get("status", {}).get("operator", ""))
        if holder == self.operator:
            self.forget(key)
            return True
        if holder and not self.take_over:
            self._report(key, holder)
            return False
        version = str(self.store.version(Ref(LLMDEPLOYMENTS, *key)))
        self.store.put(LLMDEPLOYMENTS, await self.cluster.claim(key, self.operator, version))
        if holder:
            logger.info("%s: taken over from the operator %s", key, holder)
        self.forget(key)
        return True

    def forget(self, key: Key) -> None:
        """Forget an object that was deleted, or that another operator has given up."""
        if self.foreign.pop(key, None):
            metrics.FOREIGN.set(len(self.foreign))

    def _report(self, key: Key, holder: str) -> None:
        if self.foreign.get(key) != holder:
            logger.warning(
                "%s: nothing is changed, because the operator %s manages it; --take-over would take it",
                key,
                holder,
            )
            self.foreign[key] = holder
            metrics.FOREIGN.set(len(self.foreign))
