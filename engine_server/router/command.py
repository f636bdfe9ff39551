"""`fairlead router`: flags in, a running server out."""

import argparse
import asyncio
import logging
import signal
import sys
from pathlib import Path

import uvloop

from .downstream import Limits
from .endpoints import Address
from .kubernetes_access import AccessError, find_access
from .kubernetes_source import KubernetesSource
from .policy import DEFAULT_POLICY, POLICIES
from .server import Server, Settings
from .sources import FileSource, FlagSource, Source

log = logging.getLogger(__name__)

STILL_ACCEPTING = 2.0  # after SIGTERM, until everybody has heard that we go


def endpoint(flag: str) -> tuple[list[str], Address]:
    names, _, url = flag.partition("=")
    if not url or not all(names.split(",")):
        raise argparse.ArgumentTypeError(f"NAME[,NAME...]=URL is wanted, not {flag!r}")
    try:
        return names.split(","), Address.parse(url)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fairlead router", description="Spread requests over engine replicas."
    )
    parser.add_argument("--host", default="0.0.0.0", help="address to listen on (%(default)s)")  # noqa: S104
    parser.add_argument(
        "--port", type=int, default=8080, help="port to listen on; 0 takes a free one (%(default)s)"
    )
    where = parser.add_argument_group("where the engines are (several may be given)")
    where.add_argument("--endpoint", type=endpoint, action="append", default=[], metavar="NAME[,NAME...]=URL")
    where.add_argument("--endpoints-file", type=Path, metavar="FILE", help="JSON, read again when it changes")
    where.add_argument("--kubernetes", action="store_true", help="watch LLMDeployments and EndpointSlices")
    where.add_argument(
        "--namespace", action="append", default=[], metavar="NS", help="only this one; may be repeated"
    )
    where.add_argument(
        "--kubeconfig", type=Path, metavar="FILE", help="default: the pod's own account, else $KUBECONFIG"
    )
    parser.add_argument(
        "--policy", choices=sorted(POLICIES), default=DEFAULT_POLICY, help="default: %(default)s"
    )
    parser.add_argument(
        "--max-body-bytes", type=int, default=Limits().body, metavar="N", help="default: %(default)s"
    )
    parser.add_argument(
        "--drain-timeout",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="for requests under way (%(default)s)",
    )
    return parser


def main(argv: list[str]) -> int:
    parser = arguments()
    flags = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="router: %(message)s", stream=sys.stderr)
    sources: list[Source] = []
    if flags.endpoint:
        sources.append(FlagSource(flags.endpoint))
    if flags.endpoints_file:
        sources.append(FileSource(flags.endpoints_file))
    if flags.kubernetes:
        try:
            sources.append(KubernetesSource(find_access(flags.kubeconfig), flags.namespace))
        except AccessError as error:
            parser.error(str(error))
    if not sources:
        parser.error("nothing says where the engines are: give --endpoint, --endpoints-file or --kubernetes")
    settings = Settings(
        flags.host, flags.port, flags.policy, Limits(body=flags.max_body_bytes), flags.drain_timeout
    )

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(settings, sources))
    return 0


async def serve(settings: Settings, sources: list[Source]) -> None:
    server = Server(settings, sources)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, server.leave, STILL_ACCEPTING)
    loop.add_signal_handler(signal.SIGINT, server.leave, 0.0)
    await server.run(lambda port: log.info("listening on http://%s:%d", settings.host, port))
