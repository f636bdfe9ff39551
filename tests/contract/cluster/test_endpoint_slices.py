"""The one address of each pod in EndpointSlices."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from kubernetes_objects import endpoint, slice_of

from engine_server.contract.cluster.endpoint_slices import EndpointSlice, addresses_by_pod


def addresses(*slices: dict) -> dict[str, tuple[str, int]]:
    typed = [msgspec.convert(each, EndpointSlice) for each in slices]
    return addresses_by_pod(typed, lambda one: one.port("http"), lambda endpoint: endpoint.conditions.usable)


V4 = slice_of("m", "v4", endpoint("10.0.0.1", "both"), endpoint("10.0.0.2", "four"))
V6 = slice_of("m", "v6", endpoint("fd00::1", "both"), endpoint("fd00::3", "six"), family="IPv6")
NAMES = slice_of("m", "names", endpoint("a.example", "named"), family="FQDN")
AGAIN = slice_of("m", "again", endpoint("10.0.0.2", "four"))
EXPECTED = {"both": ("10.0.0.1", 8000), "four": ("10.0.0.2", 8000), "six": ("fd00::3", 8000)}


@given(st.permutations([V4, V6, NAMES, AGAIN]))
def test_a_pod_has_one_address_of_ipv4_if_it_has_one_whatever_the_order_of_slices(slices: list[dict]) -> None:
    assert addresses(*slices) == EXPECTED


def test_a_pod_counts_by_the_slice_in_which_it_is_usable() -> None:
    draining = slice_of("m", "old", endpoint("10.0.0.1", "a", serving=True, terminating=True))
    serving = slice_of("m", "new", endpoint("10.0.0.9", "a"))

    assert addresses(draining, serving) == {"a": ("10.0.0.9", 8000)}


def test_an_endpoint_without_a_pod_is_known_by_its_host_and_a_slice_without_the_port_is_left_out() -> None:
    other_port = slice_of("m", "s", endpoint("10.0.0.2", "b")) | {"ports": [{"name": "metrics", "port": 9}]}

    assert addresses(slice_of("m", "s", endpoint("10.0.0.1")), other_port) == {"10.0.0.1": ("10.0.0.1", 8000)}
