"""Sockets that listen on all addresses, of IPv4 and of IPv6."""

import socket

import pytest
from loopbacks import both_families, needs_ipv6

from engine_server.contract.base.listening import EVERY_ADDRESS_IN_PODS, ListenError, listen_on

EVERYWHERE = ["::", EVERY_ADDRESS_IN_PODS]


def accepts(listener: socket.socket, address: str) -> bool:
    """Return True if a client reaches a socket at an address."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as client:
        return client.connect_ex((address, listener.getsockname()[1])) == 0


@pytest.mark.parametrize("host", EVERYWHERE)
@both_families
def test_listens_on_the_addresses_of_both_families(host: str, loopback: str) -> None:
    with listen_on(host, 0) as listener:
        assert accepts(listener, loopback)


@pytest.mark.parametrize("host", EVERYWHERE)
def test_listens_on_ipv4_where_the_kernel_has_no_ipv6(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)

    with listen_on(host, 0) as listener:
        assert listener.family == socket.AF_INET
        assert accepts(listener, "127.0.0.1")


def test_engines_of_earlier_releases_listen_on_all_of_ipv4_with_the_flag_of_pods() -> None:
    # Without a colon in it, they took the host for one of IPv4.
    with socket.create_server((EVERY_ADDRESS_IN_PODS, 0), family=socket.AF_INET) as listener:
        assert listener.getsockname()[0] == "0.0.0.0"
        assert accepts(listener, "127.0.0.1")


@needs_ipv6
@pytest.mark.parametrize(("host", "other"), [("0.0.0.0", "::1"), ("127.0.0.1", "::1"), ("::1", "127.0.0.1")])
def test_an_address_of_one_family_is_only_of_that(host: str, other: str) -> None:
    with listen_on(host, 0) as listener:
        assert not accepts(listener, other)


def test_a_port_that_is_taken_is_named_with_its_address() -> None:
    with listen_on("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ListenError, match=rf"can't listen on 127\.0\.0\.1:{port}: "):
            listen_on("127.0.0.1", port)
