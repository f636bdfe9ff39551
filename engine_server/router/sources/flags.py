"""Deployments from the flag `--endpoint NAME[,NAME...]=URL`."""

import argparse
from collections.abc import Iterable
from pathlib import Path

from engine_server.contract.cluster.api import DEFAULT_NAMESPACE, Key
from engine_server.router.routing.directory import Deployment
from engine_server.router.routing.endpoint import READY_PATH, EngineAddress, parse_engine_address

NamedAddress = tuple[list[str], EngineAddress]


def parse_endpoint(flag: str) -> NamedAddress:
    """Return the model names and the address in the value of one flag. Raises argparse.ArgumentTypeError."""
    names, _, url = flag.partition("=")
    if not url or not all(names.split(",")):
        raise argparse.ArgumentTypeError(f"expected NAME[,NAME...]=URL, got {flag!r}")
    try:
        return names.split(","), parse_engine_address(url)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def deployments_from_flags(
    flags: Iterable[NamedAddress], ready_path: str = READY_PATH, key_file: Path | None = None
) -> list[Deployment]:
    """Return one deployment per model name, with the addresses of all flags that give the name."""
    addresses_by_name: dict[str, list[EngineAddress]] = {}
    for names, address in flags:
        for name in names:
            addresses_by_name.setdefault(name, []).append(address)
    return [
        Deployment(
            Key(DEFAULT_NAMESPACE, name), (name,), tuple(addresses), ready_path=ready_path, key_file=key_file
        )
        for name, addresses in addresses_by_name.items()
    ]
