"""Names of the DNS in addresses of engines: each address that a name has is an endpoint of its own.

With a name as an endpoint each connection would go to any of its engines: a full one would seem to be all of them, and
a probe would ask another one than the one that has failed.
"""

import asyncio
import logging
import socket
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from ipaddress import ip_address
from threading import Thread
from time import perf_counter
from typing import NamedTuple

from engine_server.contract.cluster.api import Key
from engine_server.router.recent_subjects import RecentSubjects
from engine_server.router.routing.directory import Adapter, Deployment, Directory
from engine_server.router.routing.endpoint import Address, EngineAddress

log = logging.getLogger(__name__)

# Between two look-ups of a name.
RESOLVE_SECONDS = 3.0
# Further addresses of a name are not used.
MOST_ADDRESSES = 1000
# To learn in which family of addresses a host serves: of each, so many are tried for so long.
TRIED_ADDRESSES = 4
CONNECT_SECONDS = 1.0


class Found(NamedTuple):
    """One address of a name, as the resolver has it."""

    family: int
    host: str


class NamedEndpoints:
    """Puts deployments into a directory, with the addresses of names in place of the names.

    Sources use it as they would use the directory. A name is looked up at once, and every RESOLVE_SECONDS. A failed or
    empty answer changes nothing; a deployment whose names have had no answer yet has no replicas.
    """

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        # Those with names, as their sources have them.
        self._deployments: dict[Key, Deployment] = {}
        # By name and port. A name that is followed and is not here has had no answer.
        self._addresses: dict[Address, tuple[Address, ...]] = {}
        self._followers: dict[Address, asyncio.Task[None]] = {}
        # Names whose first look-up has not ended.
        self._awaited: set[Address] = set()
        self._logged = RecentSubjects()

    @property
    def synced(self) -> bool:
        """True once each name has been looked up."""
        return not self._awaited

    def put(self, deployment: Deployment) -> None:
        """Add a deployment, or replace the one with its key."""
        if names_of(deployment):
            self._deployments[deployment.key] = deployment
        else:
            self._deployments.pop(deployment.key, None)
        self._follow_names()
        self._directory.put(self._resolved(deployment))

    def remove(self, key: Key) -> None:
        """Remove the deployment with this key, if there is one."""
        self._deployments.pop(key, None)
        self._follow_names()
        self._directory.remove(key)

    async def run(self) -> None:
        """Follow the names until cancelled."""
        try:
            await asyncio.Event().wait()
        finally:
            for follower in self._followers.values():
                follower.cancel()

    def _follow_names(self) -> None:
        """Begin to follow the names that are new, and forget those that no deployment has."""
        names = {name for deployment in self._deployments.values() for name in names_of(deployment)}
        for name in self._followers.keys() - names:
            self._followers.pop(name).cancel()
            self._addresses.pop(name, None)
            self._awaited.discard(name)
        for name in names - self._followers.keys():
            self._awaited.add(name)
            self._followers[name] = asyncio.get_running_loop().create_task(self._follow(name))

    async def _follow(self, name: Address) -> None:
        family: int | None = None
        while True:
            try:
                found = await look_up(name)
            except (OSError, UnicodeError) as error:
                if self._logged.add(str(name), perf_counter()):
                    log.warning("cannot resolve %s: %s", name, error)
            else:
                families = {each.family for each in found}
                if family not in families:
                    family = next(iter(families)) if len(families) == 1 else await serving_family(name, found)
                used = family or found[0].family
                hosts = sorted({each.host for each in found if each.family == used})
                self._set(name, tuple(Address(host, name.port, name.host) for host in hosts[:MOST_ADDRESSES]))
            self._awaited.discard(name)
            await asyncio.sleep(RESOLVE_SECONDS)

    def _set(self, name: Address, addresses: tuple[Address, ...]) -> None:
        if self._addresses.get(name) == addresses:
            return
        self._addresses[name] = addresses
        log.info("%s is at %s", name, ", ".join(address.host for address in addresses))
        for deployment in self._deployments.values():
            if name in names_of(deployment):
                self._directory.put(self._resolved(deployment))

    def _resolved(self, deployment: Deployment) -> Deployment:
        """Return a deployment with the addresses of its names."""
        if deployment.key not in self._deployments:
            return deployment
        adapters = tuple(
            replace(adapter, addresses=self._resolve(adapter.addresses)) for adapter in deployment.adapters
        )
        return replace(deployment, addresses=self._resolve(deployment.addresses), adapters=adapters)

    def _resolve(self, addresses: Iterable[EngineAddress]) -> tuple[EngineAddress, ...]:
        """Return addresses without names; one that two names have is there once, with the first."""
        resolved: dict[EngineAddress, None] = {}
        for address in addresses:
            if isinstance(address, Address) and is_name(address.host):
                resolved |= dict.fromkeys(self._addresses.get(address, ()))
            else:
                resolved[address] = None
        return tuple(resolved)


def names_of(deployment: Deployment | Adapter) -> list[Address]:
    """Return the addresses of a deployment that have names."""
    return [one for one in deployment.addresses if isinstance(one, Address) and is_name(one.host)]


def is_name(host: str) -> bool:
    """Return True for a host that has to be looked up."""
    try:
        ip_address(host)
    except ValueError:
        return True
    return False


async def look_up(name: Address) -> Sequence[Found]:
    """Return the addresses of a name, in the resolver's order. Raises OSError, also without any, and UnicodeError.

    It runs in a thread of its own: nothing else waits for a resolver that does not answer, not even the process' end.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Sequence[Found]] = loop.create_future()

    def work() -> None:
        found: Sequence[Found] = ()
        failure: Exception | None = None
        try:
            infos = socket.getaddrinfo(name.host, name.port, type=socket.SOCK_STREAM)
            found = [Found(family, str(address[0])) for family, *_, address in infos]
        except (OSError, UnicodeError) as error:
            failure = error
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(end, found, failure)

    def end(found: Sequence[Found], failure: Exception | None) -> None:
        if future.cancelled():
            return
        if failure is None and found:
            future.set_result(found)
        else:
            future.set_exception(failure or OSError("it has no addresses"))

    Thread(target=work, name=f"look up {name.host}", daemon=True).start()
    return await future


async def serving_family(name: Address, found: Sequence[Found]) -> int | None:
    """Return the family of the first address of a host that accepts a connection; None if none does."""
    for family in dict.fromkeys(each.family for each in found):
        hosts = [each.host for each in found if each.family == family]
        for host in hosts[:TRIED_ADDRESSES]:
            with suppress(OSError):
                async with asyncio.timeout(CONNECT_SECONDS):
                    _, writer = await Address(host, name.port).open_streams()
                writer.close()
                return family
    return None
