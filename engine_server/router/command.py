"""The command `fairlead router`."""

import argparse
import asyncio
import logging
import signal
import sys
from pathlib import Path

import uvloop

from engine_server.contract.drain import ANNOUNCE_SECONDS, DEFAULT_DRAIN_TIMEOUT_SECONDS
from engine_server.contract.labels import ROUTER_PORT
from engine_server.router.http.downstream import Limits
from engine_server.router.routing.directory import Deployment
from engine_server.router.routing.policies.registry import DEFAULT_POLICY, POLICIES
from engine_server.router.server import Server, Settings
from engine_server.router.sources.file import FileSource
from engine_server.router.sources.flags import deployments_from_flags, parse_endpoint
from engine_server.router.sources.kubernetes.access import AccessError, find_access
from engine_server.router.sources.kubernetes.source import KubernetesSource
from engine_server.router.sources.source import Source

log = logging.getLogger(__name__)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser("fairlead router", description="Spread requests over engine replicas.")
    flag = parser.add_argument
    flag("--host", default="0.0.0.0", help="address to listen on (%(default)s)")  # noqa: S104
    flag("--port", type=int, default=ROUTER_PORT, help="port to listen on; 0 takes a free one (%(default)s)")
    flag(
        "--policy",
        choices=sorted(POLICIES),
        default=DEFAULT_POLICY,
        help="policy of deployments that do not name one (%(default)s)",
    )
    flag(
        "--max-body-bytes",
        type=int,
        default=Limits().body,
        metavar="N",
        help="largest body of a request (%(default)s)",
    )
    flag(
        "--drain-timeout",
        type=float,
        default=DEFAULT_DRAIN_TIMEOUT_SECONDS,
        metavar="S",
        help="seconds that requests in flight get after SIGTERM (%(default)s)",
    )
    flag = parser.add_argument_group("sources of endpoints (several may be given)").add_argument
    flag("--endpoint", type=parse_endpoint, action="append", default=[], metavar="NAME[,NAME...]=URL")
    flag("--endpoints-file", type=Path, metavar="FILE", help="JSON file, read again when it changes")
    flag("--kubernetes", action="store_true", help="watch LLMDeployments and EndpointSlices")
    flag(
        "--namespace",
        action="append",
        default=[],
        metavar="NS",
        help="namespace to watch, may be repeated (default: all)",
    )
    flag(
        "--kubeconfig",
        type=Path,
        metavar="FILE",
        help="default: the pod's service account, else $KUBECONFIG, else ~/.kube/config",
    )
    return parser


def main(argv: list[str]) -> int:
    """Run a router until SIGTERM or SIGINT; return the exit status."""
    parser = build_parser()
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
        parser.error("no source of endpoints: give --endpoint, --endpoints-file or --kubernetes")
    limits = Limits(body=flags.max_body_bytes)
    settings = Settings(flags.host, flags.port, flags.policy, limits, flags.drain_timeout)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(settings, deployments_from_flags(flags.endpoint), sources))
    return 0


async def serve(settings: Settings, deployments: list[Deployment], sources: list[Source]) -> None:
    """Run a server that drains on a signal; after SIGINT it does not wait until clients see that it is not ready."""
    server = Server(settings, deployments, sources)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, server.leave, ANNOUNCE_SECONDS)
    loop.add_signal_handler(signal.SIGINT, server.leave, 0.0)
    await server.run(lambda port: log.info("listening on http://%s:%d", settings.host, port))
