"""The loopback addresses of IPv4 and IPv6, at which tests reach what listens on all addresses."""

import socket

import pytest

HAS_IPV6 = socket.has_dualstack_ipv6()
needs_ipv6 = pytest.mark.skipif(not HAS_IPV6, reason="the kernel has no IPv6")
both_families = pytest.mark.parametrize("loopback", ["127.0.0.1", pytest.param("::1", marks=needs_ipv6)])
