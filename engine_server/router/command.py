"""`fairlead router`: flags in, a running server out."""

import argparse
import asyncio
import logging
import signal
import sys
from pathlib import Path

import uvloop

from engine_server.contract.drain import ANNOUNCE_SECONDS, DEFAULT_DRAIN_TIMEOUT_SECONDS
from engine_server.contract.labels import ROUTER_PORT

from .downstream import Limits
from .endpoints import Address, Deployment
from .kubernetes_access import AccessError, find_access
from .kubernetes_source import KubernetesSource
from .policy import DEFAULT_POLICY, POLICIES
from .server import Server, Settings
from .sources import FileSource, Source, from_flags

log = logging.getLogger(__name__)


def endpoint(flag: str) -> tuple[list[str], Address]:
    names, _, url = flag.partition("=")
    if not url or not all(names.split(",")):
        raise argparse.ArgumentTypeError(f"NAME[,NAME...]=URL is wanted, not {flag!r}")
    try:
        return names.split(","), Address.parse(url)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("fairlead router", description="Spread requests over engine replicas.")
    flag = parser.add_argument
    flag("--host", default="0.0.0.0", help="to listen on (%(default)s)")  # noqa: S104
    flag("--port", type=int, default=ROUTER_PORT, help="to listen on; 0 takes a free one (%(default)s)")
    flag("--policy", choices=sorted(POLICIES), default=DEFAULT_POLICY, help="%(default)s, if not given")
    flag("--max-body-bytes", type=int, default=Limits().body, metavar="N", help="of a request (%(default)s)")
    flag(
        "--drain-timeout",
        type=float,
        default=DEFAULT_DRAIN_TIMEOUT_SECONDS,
        metavar="S",
        help="seconds to finish (%(default)s)",
    )
    flag = parser.add_argument_group("where the engines are (all of these can be given)").add_argument
    flag("--endpoint", type=endpoint, action="append", default=[], metavar="NAME[,NAME...]=URL")
    flag("--endpoints-file", type=Path, metavar="FILE", help="JSON, read again when it changes")
    flag("--kubernetes", action="store_true", help="watch LLMDeployments and EndpointSlices")
    flag("--namespace", action="append", default=[], metavar="NS", help="watch this one; may be repeated")
    flag("--kubeconfig", type=Path, metavar="FILE", help="default: the pod's account, else $KUBECONFIG")
    return parser


def main(argv: list[str]) -> int:
    parser = arguments()
    flags = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="router: %(message)s", stream=sys.stderr)
    sources: list[Source] = []
    if flags.endpoints_file:
        sources.append(FileSource(flags.endpoints_file))
    if flags.kubernetes:
        try:
            sources.append(KubernetesSource(find_access(flags.kubeconfig), flags.namespace))
        except AccessError as error:
            parser.error(str(error))
    if not (flags.endpoint or sources):
        parser.error("nothing says where the engines are: give --endpoint, --endpoints-file or --kubernetes")
    limits = Limits(body=flags.max_body_bytes)
    settings = Settings(flags.host, flags.port, flags.policy, limits, flags.drain_timeout)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(settings, from_flags(flags.endpoint), sources))
    return 0


async def serve(settings: Settings, deployments: list[Deployment], sources: list[Source]) -> None:
    server = Server(settings, deployments, sources)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, server.leave, ANNOUNCE_SECONDS)
    loop.add_signal_handler(signal.SIGINT, server.leave, 0.0)
    await server.run(lambda port: log.info("listening on http://%s:%d", settings.host, port))
