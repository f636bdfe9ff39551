"""Fairlead's headers end at the router."""

import pytest

from engine_server.contract.wire.headers import ALL_HEADERS
from engine_server.router.http.forwarded_fields import ForwardedFields
from engine_server.router.http.wire import Fields


@pytest.mark.parametrize("spelling", [str.lower, str.upper, str])
@pytest.mark.parametrize("name", sorted(ALL_HEADERS))
def test_the_router_forwards_no_header_of_ours(name, spelling):
    fields = Fields(ForwardedFields([b"*"]))
    fields.add(b"X-Kept", b"1")
    fields.add(spelling(name).encode(), b"1")

    assert fields.take_forwarded() == b"X-Kept: 1\r\n"
