"""`fairlead up WHAT...`: models and LLMDeployments as processes of this machine, behind the router."""

import argparse
import asyncio
import sys
from pathlib import Path

import yaml

from engine_server.contract.base.command_line import Parser
from engine_server.contract.base.listening import ListenError
from engine_server.contract.cluster.labels import ROUTER_PORT
from engine_server.contract.cluster.model_uri import EXAMPLES
from llm_local.engines import Command, fairlead
from llm_local.left_out import left_out
from llm_local.local import up
from llm_local.machine import HOST, free_port
from llm_local.manifests import Manifest, ManifestError, pods, read
from llm_local.processes import StartError, say
from llm_local.router import Router


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="fairlead up", description="Run models and LLMDeployments on this machine, without a cluster."
    )
    flag = parser.add_argument
    flag(
        "words",
        metavar="WHAT",
        nargs="+",
        help=f"a model: {EXAMPLES}, a folder or a GGUF file; "
        "or manifests: a file that ends in .yaml or .yml, a folder with such files, or - for standard input",
    )
    flag(
        "--replicas",
        type=positive,
        metavar="N",
        help="the number of engines of each model (default: the manifest's, or 1)",
    )
    flag("--host", default=HOST, help="the router's address; 0.0.0.0: all")
    flag(
        "--port",
        type=int,
        default=ROUTER_PORT,
        help="the router's port; 0: any free one",
    )
    flag(
        "--keys-file",
        type=readable,
        metavar="FILE",
        help="callers' keys and limits, as for `fairlead router` (default: anybody may ask)",
    )
    flag("--print", action="store_true", help="print the manifests, and run nothing")
    return parser


def main(argv: list[str], command: Command = fairlead) -> int:
    """Run until a signal ends it; the return value is the process's exit status."""
    arguments = build_parser().parse_args(argv)
    try:
        manifests = read(arguments.words, arguments.replicas)
        planned = pods(manifests)
        if arguments.print:
            print(yaml.safe_dump_all([each.content for each in manifests], sort_keys=False), end="")
            return 0
        port = router_port(arguments.host, arguments.port)
        report_left_out(manifests)
        asyncio.run(up(planned, Router(arguments.host, port, arguments.keys_file), command))
    except (ManifestError, StartError) as error:
        print(f"fairlead up: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


def report_left_out(manifests: list[Manifest]) -> None:
    for manifest in manifests:
        for line in left_out(manifest.content):
            say(f"{manifest.place}: {line}")


def router_port(host: str, wanted: int) -> int:
    """Return `wanted`, or a free port for 0. Raises StartError if it cannot be used."""
    try:
        return free_port(host, wanted)
    except ListenError as error:
        raise StartError(f"{error}; choose another address with --port or --host") from error


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def readable(text: str) -> Path:
    """Return the absolute path of a file. Raises argparse.ArgumentTypeError if it cannot be read."""
    path = Path(text).absolute()
    try:
        path.open().close()
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text} cannot be read: {error.strerror}") from None
    return path
