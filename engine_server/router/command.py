"""The command `fairlead router`."""

import argparse
import asyncio
import logging
import signal
import sys
from ipaddress import ip_network
from pathlib import Path

import uvloop

from engine_server.contract.base.authority import authority
from engine_server.contract.base.command_line import Parser
from engine_server.contract.base.listening import EVERY_ADDRESS, ListenError
from engine_server.contract.base.logs import add_log_flags, configure_logs
from engine_server.contract.base.open_files import most_connections, raise_open_files_limit
from engine_server.contract.cluster.drain import ANNOUNCE_SECONDS, DEFAULT_DRAIN_TIMEOUT_SECONDS
from engine_server.contract.cluster.labels import METRICS_PORT, ROUTER_PORT
from engine_server.contract.cluster.policies import DEFAULT_POLICY
from engine_server.router.callers.callers import Callers
from engine_server.router.callers.peers import PeerSettings
from engine_server.router.http.forwarded_fields import parse_pattern
from engine_server.router.http.limits import Limits
from engine_server.router.line_writer import LineWriter
from engine_server.router.memory_limit import CONNECTION_BYTES, memory_limit
from engine_server.router.requests.access_log import RENDERERS, AccessLog
from engine_server.router.requests.hold.hold import HoldSettings
from engine_server.router.requests.watch import WatchTimes
from engine_server.router.routing.directory import Deployment
from engine_server.router.routing.endpoint import READY_PATH, Address, parse_ready_path
from engine_server.router.routing.key import DEFAULT_PREFIX_CHARS
from engine_server.router.routing.policies.registry import POLICIES
from engine_server.router.server import Outputs, Server, Settings
from engine_server.router.sources.file import FileSource
from engine_server.router.sources.flags import deployments_from_flags, parse_endpoint
from engine_server.router.sources.kubernetes.access import AccessError, find_access
from engine_server.router.sources.kubernetes.source import KubernetesSource
from engine_server.router.sources.source import Source

log = logging.getLogger(__name__)

# For the last lines of the log, in case that nobody reads them.
LOG_CLOSE_SECONDS = 1.0
# The part of the memory limit that bodies may take unless configured.
BUFFER_SHARE = 4


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = Parser(
        "fairlead router",
        description="Spread requests over engine replicas. `fairlead router key NAME` makes a key for --keys-file.",
    )
    flag = parser.add_argument
    flag("--host", default=EVERY_ADDRESS, help="address to listen on; :: is all of IPv4 and IPv6")
    flag("--port", type=int, default=ROUTER_PORT, help="port to listen on; 0 takes a free one")
    flag(
        "--metrics-port",
        type=int,
        default=METRICS_PORT,
        help="port of /metrics and /internal, for the cluster alone; 0 takes a free one",
    )
    flag(
        "--policy",
        choices=sorted(POLICIES),
        default=DEFAULT_POLICY,
        help="policy of deployments that do not name one",
    )
    flag(
        "--prefix-chars",
        type=positive,
        default=DEFAULT_PREFIX_CHARS,
        metavar="N",
        help="characters of the first user message, or of the prompt, by which the policy prefix chooses",
    )
    flag(
        "--max-body-bytes",
        type=int,
        default=Limits().body,
        metavar="N",
        help="largest body of a request",
    )
    flag(
        "--buffer-bytes",
        type=int,
        metavar="N",
        help="most memory for bodies of requests and for unread answers (default: a quarter of the memory limit)",
    )
    flag(
        "--trusted-proxies",
        type=ip_network,
        action="append",
        default=[],
        metavar="CIDR",
        help="network of proxies whose X-Forwarded-For names the clients, among which memory and places are shared "
        "where there are no keys; may be repeated (default: none)",
    )
    flag(
        "--idle-timeout",
        type=float,
        default=Limits().idle_seconds,
        metavar="S",
        help="seconds without a request after which a client's connection is closed; longer than load balancers keep "
        "theirs",
    )
    flag(
        "--allow-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="origin whose pages may call the router from browsers, or *; may be repeated (default: none)",
    )
    flag(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="with a loopback address as --host: a name by which the router may be called besides localhost, "
        "*.localhost, addresses and the machine's name; may be repeated",
    )
    flag(
        "--forward-header",
        type=parse_forwarded,
        action="append",
        default=[],
        metavar="NAME[*]",
        help="header field that is forwarded in both directions besides those of docs/router.md, or the beginning of "
        "such names and *; may be repeated",
    )
    flag(
        "--drain-grace",
        type=float,
        default=ANNOUNCE_SECONDS,
        metavar="S",
        help="seconds after SIGTERM in which connections are still accepted, until load balancers see that the router "
        "is not ready",
    )
    flag(
        "--drain-timeout",
        type=float,
        default=DEFAULT_DRAIN_TIMEOUT_SECONDS,
        metavar="S",
        help="seconds that requests in flight get after that, at most: with --kubernetes they get the longest "
        "rollout.drainTimeoutSeconds of all LLMDeployments",
    )
    flag(
        "--access-log",
        choices=("off", *RENDERERS),
        default="off",
        help="a line on stderr for each request",
    )
    flag(
        "--otlp-traces-endpoint",
        metavar="URL",
        help="export a span for each request of a sampled trace to this address (OTLP over HTTP)",
    )
    add_log_flags(parser)
    flag = parser.add_argument_group("keys and limits").add_argument
    flag(
        "--keys-file",
        type=Path,
        metavar="FILE",
        help="callers' keys and limits, YAML, read again when it changes",
    )
    flag(
        "--engine-key-file",
        type=Path,
        metavar="FILE",
        help="root key from which the keys for engines are derived, read again when it changes",
    )
    flag(
        "--require-internal-key",
        action="store_true",
        help="/internal on the metrics port is for routers and the operator, by a key derived from --engine-key-file",
    )
    flag(
        "--peer",
        type=parse_peer,
        action="append",
        default=[],
        metavar="URL",
        help="http://HOST:PORT of another router's internal port, with which limits are shared; may be repeated",
    )
    flag("--peers-service", metavar="NAME", help="DNS name that has the addresses of all routers")
    hold = HoldSettings()
    flag(
        "--hold-requests",
        type=int,
        default=hold.requests,
        metavar="N",
        help="requests of one deployment that wait at most for a replica",
    )
    flag(
        "--hold-seconds",
        type=float,
        default=hold.seconds,
        metavar="S",
        help="longest wait for a replica; 0 refuses requests immediately",
    )
    flag(
        "--queue-when-full",
        action="store_true",
        help="requests that find all replicas full wait too, instead of getting a 503",
    )
    flag(
        "--stall-timeout",
        type=float,
        default=WatchTimes().stall,
        metavar="S",
        help="seconds without a byte of an engine after which a stream is continued by another replica; engines send a "
        "comment every 15 s",
    )
    flag = parser.add_argument_group("sources of endpoints (several may be given)").add_argument
    flag(
        "--endpoint",
        type=parse_endpoint,
        action="append",
        default=[],
        metavar="NAME[,NAME...]=URL",
        help="the models of an engine at http://HOST:PORT or unix:/PATH; may be repeated",
    )
    flag("--endpoints-file", type=Path, metavar="FILE", help="JSON file, read again when it changes")
    flag(
        "--ready-path",
        type=parse_path,
        default=READY_PATH,
        metavar="PATH",
        help="path at which the engines of --endpoint, and those of --endpoints-file that name none, answer 200 while "
        "they take requests; /health for vLLM, SGLang and llama.cpp",
    )
    flag(
        "--endpoint-key-file",
        type=Path,
        metavar="FILE",
        help="key that these engines get as `Authorization: Bearer KEY`, read again when it changes",
    )
    flag("--kubernetes", action="store_true", help="watch LLMDeployments and EndpointSlices")
    flag(
        "--forward-credentials",
        action="store_true",
        help="with --kubernetes, and without --keys-file and --engine-key-file: engines get the Authorization and "
        "x-api-key that clients send, as those of the other sources do",
    )
    flag(
        "--namespace",
        action="append",
        default=[],
        metavar="NS",
        help="namespace to watch, may be repeated (default: all)",
    )
    flag(
        "--served-name-organization",
        action="append",
        default=[],
        metavar="ORG",
        help="with --kubernetes: served names ORG/NAME are allowed even without a capital or a dot, as of "
        "openai/gpt-oss-20b; give the operator the same. No namespace may be called so; may be repeated",
    )
    flag(
        "--kubeconfig",
        type=Path,
        metavar="FILE",
        help="access to the cluster (default: the pod's service account, else $KUBECONFIG, else ~/.kube/config)",
    )
    return parser


def positive(text: str) -> int:
    """Return the number in a flag's value. Raises ValueError unless it is at least 1."""
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def main(argv: list[str]) -> int:
    """Run a router until SIGTERM or SIGINT; return the exit status."""
    if argv[:1] == ["key"]:
        # With a YAML writer, which a running router does not need.
        from engine_server.router.callers import new_key

        return new_key.main(argv[1:])
    parser = build_parser()
    flags = parser.parse_args(argv)
    sources: list[Source] = []
    if flags.endpoints_file:
        sources.append(FileSource(flags.endpoints_file, flags.ready_path, flags.endpoint_key_file))
    if flags.kubernetes:
        try:
            watched = KubernetesSource(
                find_access(flags.kubeconfig),
                flags.namespace,
                organizations=frozenset(flags.served_name_organization),
                forwards_credentials=flags.forward_credentials,
            )
            sources.append(watched)
        except AccessError as error:
            parser.error(str(error))
    if not (flags.endpoint or sources):
        parser.error("no source of endpoints: give --endpoint, --endpoints-file or --kubernetes")
    if flags.require_internal_key and not flags.engine_key_file:
        parser.error("--require-internal-key needs --engine-key-file, from which the key is derived")
    try:
        callers = Callers(flags.keys_file, flags.engine_key_file)
        if flags.endpoint_key_file:
            callers.engine_credentials.endpoint_keys.load(flags.endpoint_key_file)
    except ValueError as error:
        parser.error(str(error))
    raise_open_files_limit()
    memory = memory_limit()
    settings = Settings(
        host=flags.host,
        port=flags.port,
        metrics_port=flags.metrics_port,
        policy=flags.policy,
        limits=Limits(
            body=flags.max_body_bytes,
            connections=most_connections(memory // CONNECTION_BYTES),
            idle_seconds=flags.idle_timeout,
        ),
        buffer_bytes=flags.buffer_bytes or memory // BUFFER_SHARE,
        trusted_proxies=flags.trusted_proxies,
        origins=flags.allow_origin,
        hosts=flags.allow_host,
        forwarded_fields=flags.forward_header,
        drain_grace=flags.drain_grace,
        drain_timeout=flags.drain_timeout,
        peers=PeerSettings(tuple(flags.peer), flags.peers_service),
        requires_internal_key=flags.require_internal_key,
        watch=WatchTimes(stall=flags.stall_timeout),
        hold=HoldSettings(flags.hold_requests, flags.hold_seconds, flags.queue_when_full),
        prefix_chars=flags.prefix_chars,
    )
    tracing = None
    if flags.otlp_traces_endpoint:
        try:
            from engine_server.router.requests.tracing import Tracing
        except ImportError as error:
            parser.error(f"--otlp-traces-endpoint needs the extra `tracing` of this package: {error}")
        tracing = Tracing(flags.otlp_traces_endpoint)
    lines = LineWriter(sys.stderr.fileno())
    configure_logs("router", flags.log_level, flags.log_format, lines)
    access_log = None if flags.access_log == "off" else AccessLog(lines, RENDERERS[flags.access_log])
    outputs = Outputs(lines, access_log, tracing)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            deployments = deployments_from_flags(flags.endpoint, flags.ready_path, flags.endpoint_key_file)
            runner.run(serve(settings, deployments, sources, callers, outputs))
    except ListenError as error:
        log.error("%s", error)
        return 1
    finally:
        lines.close(LOG_CLOSE_SECONDS)
    return 0


async def serve(
    settings: Settings,
    deployments: list[Deployment],
    sources: list[Source],
    callers: Callers,
    outputs: Outputs,
) -> None:
    """Run a server that drains on a signal; after SIGINT it does not wait until clients see that it is not ready."""
    server = Server(settings, deployments, sources, callers, outputs)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, server.leave, settings.drain_grace)
    loop.add_signal_handler(signal.SIGINT, server.leave, 0.0)

    def report(port: int, metrics_port: int) -> None:
        log.info("metrics are on http://%s/metrics", authority(settings.host, metrics_port))
        log.info("listening on http://%s", authority(settings.host, port))

    await server.run(report)


def parse_forwarded(flag: str) -> bytes:
    """Return the pattern in the value of a flag `--forward-header`. Raises argparse.ArgumentTypeError."""
    try:
        return parse_pattern(flag)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def parse_path(flag: str) -> str:
    """Return the path in the value of a flag `--ready-path`. Raises argparse.ArgumentTypeError."""
    try:
        return parse_ready_path(flag)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def parse_peer(flag: str) -> Address:
    """Return the address in the value of a flag `--peer`. Raises argparse.ArgumentTypeError."""
    try:
        return Address.parse(flag)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
