"""Deployments from the flag `--endpoint`."""

import argparse
from pathlib import Path

import pytest

from engine_server.contract.cluster.api import Key
from engine_server.router.routing.endpoint import Address, SocketPath
from engine_server.router.sources.flags import deployments_from_flags, parse_endpoint


def test_a_model_has_the_addresses_of_all_flags_that_name_it():
    flags = [parse_endpoint("a,b=http://h:1"), parse_endpoint("a=http://h:2")]

    first, second = deployments_from_flags(flags)

    assert (first.key, first.served_names) == (Key("default", "a"), ("a",))
    assert first.addresses == (Address("h", 1), Address("h", 2))
    assert (second.key, second.addresses) == (Key("default", "b"), (Address("h", 1),))
    assert not first.vouched  # a probe must succeed before the first request


def test_the_engines_of_the_flags_may_have_a_path_of_readiness_and_a_key_of_their_own():
    (deployment,) = deployments_from_flags([parse_endpoint("a=http://h:1")], "/health", Path("/run/key"))

    assert (deployment.ready_path, deployment.key_file) == ("/health", Path("/run/key"))


def test_an_address_is_a_host_with_a_port_or_the_path_of_a_unix_socket():
    (deployment,) = deployments_from_flags(
        [parse_endpoint("a=http://h:1"), parse_endpoint("a=unix:/run/a.sock")]
    )

    assert deployment.addresses == (Address("h", 1), SocketPath("/run/a.sock"))


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("https://h", "an endpoint is http://HOST:PORT or unix:/PATH, not 'https://h'"),
        ("unix:a.sock", "a Unix socket is unix:/PATH with printable characters, not 'unix:a.sock'"),
        ("unix:/" + "x" * 107, "the path of a Unix socket has at most"),
    ],
)
def test_an_address_of_another_form_is_refused_with_the_forms_that_there_are(address, message):
    with pytest.raises(argparse.ArgumentTypeError, match=message):
        parse_endpoint(f"a={address}")


@pytest.mark.parametrize("flag", ["m", "=http://h", "a,=http://h", "a=", "a=https://h"])
def test_refuses_a_flag_of_another_form(flag):
    with pytest.raises(argparse.ArgumentTypeError):
        parse_endpoint(flag)
