"""The addresses by which clients are known."""

from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

# The longest text of an address.
LONGEST_ADDRESS = 64
# One site has at least that many bits of an IPv6 address to itself.
SITE_BITS = 64


@lru_cache(maxsize=4096)
def site(text: str) -> str:
    """Return an IPv4 address as it is, and of an IPv6 address the network of its site."""
    address = parse_address(text)
    if isinstance(address, IPv6Address):
        return str(ip_network((address, SITE_BITS), strict=False))
    return text if address is None else str(address)


def parse_address(text: str) -> IPv4Address | IPv6Address | None:
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
