"""The addresses of clients, also of those behind proxies."""

from collections.abc import Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

FORWARDED_FOR = b"x-forwarded-for"
# Proxies that are looked behind at most, and the longest text of an address.
MOST_PROXIES = 16
LONGEST_ADDRESS = 64
# One site has at least that many bits of an IPv6 address to itself.
SITE_BITS = 64

Network = IPv4Network | IPv6Network


class ClientAddresses:
    """Finds the address by which a client without a key is known."""

    def __init__(self, trusted: Sequence[Network] = ()) -> None:
        """trusted: the proxies whose `X-Forwarded-For` is believed."""
        self._trusted = trusted

    def find(self, peer: str, forwarded_for: bytes | None) -> str:
        """Return the client of a connection from `peer`: the last address that is not a trusted proxy's.

        IPv6 clients are known by their network of 64 bits.
        """
        if not self._trusted or forwarded_for is None:
            return site(peer)
        client = peer
        for hop in (
            peer,
            *reversed(forwarded_for.decode("latin-1").rsplit(",", MOST_PROXIES)[-MOST_PROXIES:]),
        ):
            address = parse(hop)
            if address is None:
                break
            client = str(address)
            if not any(address in network for network in self._trusted):
                break
        return site(client)


@lru_cache(maxsize=4096)
def site(text: str) -> str:
    """Return an IPv4 address as it is, and of an IPv6 address the network of its site."""
    address = parse(text)
    if isinstance(address, IPv6Address):
        return str(ip_network((address, SITE_BITS), strict=False))
    return text if address is None else str(address)


def parse(text: str) -> IPv4Address | IPv6Address | None:
    """Return the address in a text, which may have a port, or None if there is none."""
    text = text.strip().partition("%")[0]  # an interface is of no interest
    if len(text) > LONGEST_ADDRESS:
        return None
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address
