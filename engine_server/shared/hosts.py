"""The names by which servers on loopback addresses are called.

A page of any site can let its name lead to such an address (DNS rebinding), and its browser then takes the server for a
part of the page. The field `Host` has the page's name.
"""

import socket
from collections.abc import Iterable
from ipaddress import ip_address

LOCALHOST = "localhost"


def is_loopback(host: str) -> bool:
    """Return True for an address or a name that other machines can't reach."""
    return (
        host == LOCALHOST
        or host.endswith("." + LOCALHOST)
        or (is_address(host) and ip_address(host).is_loopback)
    )


def is_address(host: str) -> bool:
    """Return True for an IP address."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def host_name(host: bytes) -> str:
    """Return the name or address in a field `Host` or at the end of an origin, without its port."""
    text = host.decode("latin-1").lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0]


class Hosts:
    """The values of `Host` that a server on a loopback address accepts.

    They are this machine's own names, all addresses, which no page can take, and the names that are allowed besides.
    """

    def __init__(self, allowed: Iterable[str]) -> None:
        machine = socket.gethostname().lower()
        own = (machine, machine.partition(".")[0])
        self._names = frozenset((*own, *(name.lower() for name in allowed)))
        # The one that was accepted last: clients keep to one.
        self._last = b""

    def accept(self, host: bytes) -> bool:
        """Return True for a field that no page of another site causes; it is empty if the request has none.

        Browsers never leave it out.
        """
        if not host or host == self._last:
            return True
        name = host_name(host)
        if not (is_loopback(name) or is_address(name) or name in self._names):
            return False
        self._last = host
        return True


def hosts_of(address: str, allowed: Iterable[str]) -> Hosts | None:
    """Return what a server on an address accepts: None, for anything, if other machines reach it by names of theirs."""
    return Hosts(allowed) if is_loopback(address) else None
