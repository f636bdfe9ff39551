"""What each name means, from scratch: the reference for the tables that are kept up to date."""

from collections.abc import Iterable

from engine_server.contract.cluster.served_names import NameClaim


def holders(claims: Iterable[NameClaim]) -> dict[str, NameClaim]:
    """Return the claim that each name means: the highest rank wins, and the oldest claim within a rank."""
    oldest_first = [
        (claim, claim.names_by_rank) for claim in sorted(claims, key=lambda claim: claim.seniority)
    ]
    table: dict[str, NameClaim] = {}
    for rank in range(3):
        for claim, names_by_rank in oldest_first:
            for name in names_by_rank[rank]:
                table.setdefault(name, claim)
    return table
