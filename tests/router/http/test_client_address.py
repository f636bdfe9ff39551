"""The address of a client: that of its connection, or what trusted proxies say."""

from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_server.router.http.client_address import ClientAddresses

TRUSTED = (ip_network("10.0.0.0/8"), ip_network("fd00::/8"))


@pytest.mark.parametrize(
    ("peer", "forwarded_for", "client"),
    [
        ("203.0.113.9", b"198.51.100.1", "203.0.113.9"),
        ("10.0.0.1", b"198.51.100.1", "198.51.100.1"),
        ("10.0.0.1", b"1.1.1.1, 198.51.100.1", "198.51.100.1"),
        ("10.0.0.1", b"1.1.1.1, 198.51.100.1, 10.2.3.4", "198.51.100.1"),
        ("::ffff:10.0.0.1", b"198.51.100.1:4711", "198.51.100.1"),
        ("10.0.0.1", b"[2001:db8:0:1:2:3:4:5]:80", "2001:db8:0:1::/64"),
        ("10.0.0.1", b"1.1.1.1, unknown", "10.0.0.1"),
        ("10.0.0.1", b"10.0.0.3, 10.0.0.2", "10.0.0.3"),
        ("10.0.0.1", None, "10.0.0.1"),
    ],
)
def test_believes_trusted_proxies_alone(peer, forwarded_for, client):
    assert ClientAddresses(TRUSTED).find(peer, forwarded_for) == client


def test_believes_nobody_unless_told_to():
    assert ClientAddresses().find("10.0.0.1", b"198.51.100.1") == "10.0.0.1"


def test_all_addresses_of_one_ipv6_network_are_one_client():
    addresses = ClientAddresses()
    first, second = (addresses.find(f"2001:db8::{n}", None) for n in (1, 2))
    assert first == second != addresses.find("2001:db8:0:1::1", None)


@given(st.binary(max_size=200))
def test_any_text_of_a_proxy_gives_an_address(forwarded_for):
    assert len(ClientAddresses(TRUSTED).find("10.0.0.1", forwarded_for)) < 64
