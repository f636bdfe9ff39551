"""The names under which deployments and their adapters are reached, and what each name means."""

import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from engine_server.contract.cluster.api import Key

# Names of objects, as of their namespaces, have no other characters.
KUBERNETES_NAME = re.compile("[-a-z0-9]+")
ORGANIZATION_AND_NAME = re.compile("[^/]+/[^/]+")
# White space, and control and format characters, which would change what a terminal shows.
UNPRINTABLE = frozenset(("Cc", "Cf", "Co", "Cs", "Zl", "Zp", "Zs"))


class NameClaim(NamedTuple):
    """The names that one deployment, or one of its adapters, asks for."""

    # Seconds since the epoch.
    created: float
    key: Key
    served_names: tuple[str, ...]
    # The adapter that answers to the served names; empty: the deployment's own model.
    adapter: str = ""

    @property
    def seniority(self) -> tuple[float, Key, str]:
        """The order of claims: by age, then by namespace and name; a model comes before its adapters."""
        return self.created, self.key, self.adapter

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that reaches the model, each once: served names, NAMESPACE/NAME, NAMESPACE/SERVED_NAME.

        Engines get their names in this order, which therefore must not change: it is part of the pod template.
        """
        return tuple(dict.fromkeys((*self.served_names, *self._own, *self._namespaced)))

    @property
    def names_by_rank(self) -> tuple[tuple[str, ...], ...]:
        """Names by falling precedence: NAMESPACE/NAME, which adapters lack, NAMESPACE/SERVED_NAME, served names.

        A name that begins with a namespace means a deployment of that namespace as long as one claims it, so that
        no deployment can take it by a served name with a slash.
        """
        return self._own, self._namespaced, self.served_names

    @property
    def _own(self) -> tuple[str, ...]:
        return () if self.adapter else (str(self.key),)

    @property
    def _namespaced(self) -> tuple[str, ...]:
        return tuple(f"{self.key.namespace}/{served}" for served in self.served_names)


class Standing(NamedTuple):
    """The place of a claim among those on one name: the highest rank holds it, and the oldest claim within a rank."""

    rank: int
    created: float
    key: Key
    adapter: str

    @property
    def identity(self) -> tuple[Key, str]:
        """The claim's owner: the deployment, and its adapter or an empty string."""
        return self.key, self.adapter


def standings(claim: NameClaim) -> Iterator[tuple[str, Standing]]:
    """Yield the names of a claim, each once, with its best standing."""
    ranks: dict[str, int] = {}
    for rank, names in enumerate(claim.names_by_rank):
        for name in names:
            ranks.setdefault(name, rank)
    for name, rank in ranks.items():
        yield name, Standing(rank, *claim.seniority)


def is_printable(name: str) -> bool:
    """Return True for a name that logs and terminals show as it is."""
    return UNPRINTABLE.isdisjoint(map(unicodedata.category, name))


def claimable(served_names: Iterable[str], key: Key, organizations: Collection[str]) -> tuple[str, ...]:
    """Return the served names that a deployment of the cluster may claim: printable ones that are not foreign.

    Whoever may create an LLMDeployment chooses its names, and one that is refused keeps its pods.
    """
    return tuple(
        name for name in served_names if is_printable(name) and not is_foreign(name, key, organizations)
    )


def is_foreign(served_name: str, key: Key, organizations: Collection[str]) -> bool:
    """Return True for a served name that could be the NAMESPACE/NAME of another object, which may not exist yet.

    organizations: those that the administrator uses for no namespace, so that ORGANIZATION/NAME is no object's.
    """
    organization, slash, name = served_name.partition("/")
    if not slash or served_name == str(key):
        return False
    if not has_one_slash(served_name):
        return True
    is_of_object = KUBERNETES_NAME.fullmatch(organization) and KUBERNETES_NAME.fullmatch(name)
    return is_of_object is not None and organization not in organizations


def has_one_slash(served_name: str) -> bool:
    """Return True for a served name ORGANIZATION/NAME."""
    return ORGANIZATION_AND_NAME.fullmatch(served_name) is not None
