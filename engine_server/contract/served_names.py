"""The names under which a deployment is reached, and the deployment that each name means."""

from collections.abc import Iterable
from typing import NamedTuple

from engine_server.contract.api import Key


class NameClaim(NamedTuple):
    """The names that one deployment asks for. Claims sort by seniority: by age, then by namespace and name."""

    # Seconds since the epoch.
    created: float
    key: Key
    served_names: tuple[str, ...]

    @property
    def names_by_rank(self) -> tuple[tuple[str, ...], ...]:
        """Every name that reaches the deployment, by falling precedence.

        First its served names, then NAMESPACE/NAME, then NAMESPACE/SERVED_NAME.
        """
        namespaced = tuple(f"{self.key.namespace}/{served}" for served in self.served_names)
        return self.served_names, (str(self.key),), namespaced

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that reaches the deployment, each once, by falling precedence."""
        return tuple(dict.fromkeys(name for rank in self.names_by_rank for name in rank))


def holders(claims: Iterable[NameClaim]) -> dict[str, NameClaim]:
    """Return the claim that each name means: the highest rank wins, and the oldest claim within a rank."""
    oldest_first = [(claim, claim.names_by_rank) for claim in sorted(claims)]
    table: dict[str, NameClaim] = {}
    for rank in range(3):
        for claim, names_by_rank in oldest_first:
            for name in names_by_rank[rank]:
                table.setdefault(name, claim)
    return table
