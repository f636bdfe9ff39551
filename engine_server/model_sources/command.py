"""`fairlead fetch URI`: fetch a model and print its folder as the last line of stdout."""

import logging
import os
import sys
from pathlib import Path

from engine_server.contract.base.command_line import Parser
from engine_server.contract.base.listening import ListenError
from engine_server.contract.base.logs import LEVEL_VARIABLE, add_log_flags, configure_logs
from engine_server.contract.cluster.fetch_container import PROGRESS_PATH, UNUSABLE
from engine_server.contract.cluster.model_uri import EXAMPLES
from engine_server.model_sources import ModelSourceError, Progress, UnusableModelError, resolve
from engine_server.model_sources.progress_server import serve


def build_parser() -> Parser:
    parser = Parser(
        prog="fairlead fetch", description="Fetch a model into a local folder and print its path."
    )
    parser.add_argument(
        "uri",
        metavar="URI",
        help=f"{EXAMPLES}, or a path",
    )
    parser.add_argument(
        "--to", type=Path, metavar="DIR", help="the folder to fetch into (default: the cache)"
    )
    parser.add_argument(
        "--progress-port", type=int, metavar="PORT", help=f"serve {PROGRESS_PATH} there while fetching"
    )
    add_log_flags(parser)
    return parser


def main(argv: list[str]) -> int:
    arguments = build_parser().parse_args(argv)
    configure_logs("fetch", arguments.log_level, arguments.log_format)
    # Libraries log each of their requests.
    logging.getLogger("engine_server").setLevel(os.environ[LEVEL_VARIABLE].upper())
    logging.getLogger().setLevel(max(logging.WARNING, logging.getLogger().level))
    progress = Progress()
    try:
        if arguments.progress_port is not None:
            serve(progress, arguments.progress_port)
        print(resolve(arguments.uri, arguments.to, progress=progress), flush=True)
    except (ModelSourceError, ListenError) as error:
        print(f"fairlead fetch: {error}", file=sys.stderr)
        return UNUSABLE if isinstance(error, UnusableModelError) else 1
    return 0
