"""Deployments from the flag `--endpoint`."""

import argparse

import pytest

from engine_server.contract.api import Key
from engine_server.router.routing.endpoint import Address
from engine_server.router.sources.flags import deployments_from_flags, parse_endpoint


def test_a_model_has_the_addresses_of_all_flags_that_name_it():
    flags = [parse_endpoint("a,b=http://h:1"), parse_endpoint("a=http://h:2")]

    first, second = deployments_from_flags(flags)

    assert (first.key, first.served_names) == (Key("default", "a"), ("a",))
    assert first.addresses == (Address("h", 1), Address("h", 2))
    assert (second.key, second.addresses) == (Key("default", "b"), (Address("h", 1),))
    assert not first.vouched  # a probe must succeed before the first request


@pytest.mark.parametrize("flag", ["m", "=http://h", "a,=http://h", "a=", "a=https://h"])
def test_refuses_a_flag_of_another_form(flag):
    with pytest.raises(argparse.ArgumentTypeError):
        parse_endpoint(flag)
