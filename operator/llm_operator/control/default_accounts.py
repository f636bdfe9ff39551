"""The image pull secrets of each namespace's account `default`, which the accounts of engines have too."""

import time
from dataclasses import dataclass, field
from typing import NamedTuple

from llm_operator.control.cluster import Cluster
from llm_operator.kinds import child_path
from llm_operator.observed import ChildKey
from llm_operator.plan.children.service_account import names_of

ACCOUNT = ChildKey("v1", "ServiceAccount", "default")
# The account is not ours, so it is not watched, and read again only after this time.
MAX_AGE_SECONDS = 60.0


class Reading(NamedTuple):
    """The secrets that a namespace had at one time."""

    time: float
    names: tuple[str, ...]


@dataclass(slots=True)
class DefaultAccounts:
    """The accounts `default`, each read at most once a minute."""

    cluster: Cluster
    readings: dict[str, Reading] = field(default_factory=dict)

    async def pull_secrets(self, namespace: str) -> tuple[str, ...]:
        """Return the names of the image pull secrets. Raises `api_errors.FAILURES`."""
        now = time.monotonic()
        last = self.readings.get(namespace)
        if last is None or now - last.time > MAX_AGE_SECONDS:
            account = await self.cluster.find(child_path(namespace, ACCOUNT)) or {}
            last = self.readings[namespace] = Reading(now, names_of(account))
        return last.names
