"""`fairlead up FILE...`: LLMDeployments as processes of this machine behind the router, without a cluster."""

import argparse
import asyncio
import sys
from pathlib import Path

from engine_server.contract.labels import ROUTER_PORT
from llm_local.engines import Command, fairlead
from llm_local.local import up
from llm_local.machine import free_port
from llm_local.manifests import ManifestError, read
from llm_local.processes import StartError


def main(argv: list[str], command: Command = fairlead) -> int:
    """Run until a signal ends it; the return value is the process's exit status."""
    parser = argparse.ArgumentParser(
        prog="fairlead up",
        description="Run the LLMDeployments in YAML files on this machine, without a cluster.",
    )
    parser.add_argument("files", metavar="FILE", nargs="+", type=Path, help="YAML with LLMDeployments")
    parser.add_argument(
        "--port",
        type=int,
        default=ROUTER_PORT,
        help="the router's port (default: %(default)s; 0: any free one)",
    )
    arguments = parser.parse_args(argv)
    try:
        pods = read(arguments.files)
        asyncio.run(up(pods, router_port(arguments.port), command))
    except (ManifestError, StartError) as error:
        print(f"fairlead up: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


def router_port(wanted: int) -> int:
    """Return `wanted`, or a free port for 0. Raises StartError if it cannot be used."""
    try:
        return free_port(wanted)
    except (OSError, OverflowError) as error:
        raise StartError(f"port {wanted} cannot be used ({error}); choose another one with --port") from error
