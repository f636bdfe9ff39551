"""The addresses of clients, also of those behind proxies."""

from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Network

from engine_server.shared.addresses import parse_address, site

FORWARDED_FOR = b"x-forwarded-for"
# Proxies that are looked behind at most.
MOST_PROXIES = 16

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
            address = parse_address(hop)
            if address is None:
                break
            client = str(address)
            if not any(address in network for network in self._trusted):
                break
        return site(client)
