"""Fairlead's headers end at the router."""

import pytest

from engine_server.contract.wire import headers
from engine_server.router.http.forwarded_fields import ForwardedFields
from engine_server.router.http.wire import Fields

NAMES = [name for name in vars(headers).values() if isinstance(name, str) and name.startswith("Fairlead-")]


def test_the_list_of_our_headers_is_complete():
    assert set(NAMES) == headers.ALL_HEADERS


@pytest.mark.parametrize("spelling", [str.lower, str.upper, str])
@pytest.mark.parametrize("name", NAMES)
def test_the_router_forwards_no_header_of_ours(name, spelling):
    fields = Fields(ForwardedFields([b"*"]))
    fields.add(b"X-Kept", b"1")
    fields.add(spelling(name).encode(), b"1")

    assert fields.take_forwarded() == b"X-Kept: 1\r\n"
