"""`fairlead operator`: one process that stands by, and works for as long as it holds the Lease."""

import argparse
import asyncio
import logging
import signal
import socket
import uuid
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import kopf
from aiohttp import web
from kubernetes.aio.client import ApiClient, Configuration
from prometheus_client.aiohttp import make_aiohttp_handler

from engine_server.contract.api import DEFAULT_NAMESPACE
from llm_operator import metrics
from llm_operator.control import handlers
from llm_operator.control.cluster import Cluster, load_configuration
from llm_operator.control.lease import Lease
from llm_operator.control.reconcile import RETRY_SECONDS, Reconciler
from llm_operator.settings import Settings

LEASE_NAME = "fairlead-operator"
OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

logger = logging.getLogger(__name__)


def own_namespace() -> str:
    """Return the namespace of this pod, or the default one outside a cluster."""
    return OWN_NAMESPACE.read_text().strip() if OWN_NAMESPACE.exists() else DEFAULT_NAMESPACE


def main(argv: list[str]) -> int:
    """Run the operator; the return value is the process's exit status."""
    flags = argparse.ArgumentParser(prog="fairlead operator", description="Turns LLMDeployments into pods.")
    flags.add_argument("--engine-image", required=True, help="for LLMDeployments without engine.image")
    flags.add_argument(
        "--namespace", action="append", default=[], help="namespace to watch; repeatable; default: all"
    )
    flags.add_argument(
        "--lease-namespace", default=own_namespace(), help="namespace of the Lease (default: %(default)s)"
    )
    flags.add_argument(
        "--allow-service-account", action="store_true", help="let a podTemplate choose its service account"
    )
    flags.add_argument("--health-port", type=int, default=8081)
    flags.add_argument("--metrics-port", type=int, default=9090)
    flags.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    options = flags.parse_args(argv)
    logging.basicConfig(
        level=options.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    if options.log_level == "info":
        # kopf logs every event at this level.
        logging.getLogger("kopf").setLevel(logging.WARNING)
    settings = Settings(
        engine_image=options.engine_image,
        namespaces=tuple(options.namespace),
        allow_service_account=options.allow_service_account,
    )
    return asyncio.run(run(settings, options.lease_namespace, (options.health_port, options.metrics_port)))


async def run(settings: Settings, lease_namespace: str, ports: tuple[int, int]) -> int:
    """Stand by, then work; return the exit status."""
    configuration = await load_configuration()
    async with ApiClient(configuration) as api, serve_health(ports):
        cluster = Cluster(api)
        reconciler = Reconciler(cluster, settings)
        lease = Lease(cluster, lease_namespace, LEASE_NAME, f"{socket.gethostname()}_{uuid.uuid4().hex[:8]}")
        standing_by = asyncio.create_task(stand_by(reconciler, lease))
        on_signals(standing_by.cancel)
        try:
            await standing_by
            return await work(reconciler, lease, configuration)
        except asyncio.CancelledError:
            return 0
        finally:
            await lease.release()


def on_signals(act: Callable[[], object]) -> None:
    """Call `act` on SIGINT and SIGTERM."""
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, act)


async def stand_by(reconciler: Reconciler, lease: Lease) -> None:
    """Wait until the API server lists LLMDeployments and this operator holds the lease."""
    while not await reconciler.relist():  # noqa: ASYNC110 (it asks the API server)
        await asyncio.sleep(RETRY_SECONDS)
    await lease.acquire()
    # The holder of a name is known only when all claims are.
    await reconciler.relist()


async def work(reconciler: Reconciler, lease: Lease, configuration: Configuration) -> int:
    """Reconcile until a signal arrives or the lease is lost; return the exit status.

    After a lost lease the process ends, since another operator works then.
    """
    metrics.LEADER.set(1)
    namespaces = reconciler.settings.namespaces
    stop = asyncio.Event()
    others = asyncio.all_tasks()
    tasks = await kopf.spawn_tasks(
        registry=handlers.registry(reconciler, configuration),
        settings=handlers.settings(),
        clusterwide=not namespaces,
        namespaces=namespaces,
        standalone=True,
        stop_flag=stop,
    )
    keeping = asyncio.create_task(lease.keep())
    keeping.add_done_callback(lambda _: stop.set())
    # kopf stops quickly by the event, and slowly by a cancellation.
    on_signals(stop.set)
    reconciling = asyncio.create_task(reconciler.run())
    await kopf.run_tasks([*tasks, keeping, reconciling], ignored=others)
    if not keeping.cancelled():
        logger.error("the lease is lost")
    return int(not keeping.cancelled())


@asynccontextmanager
async def serve_health(ports: Iterable[int]) -> AsyncIterator[None]:
    """Serve /healthz and /metrics on `ports` inside the block, while standing by and while working."""

    async def health(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    application = web.Application()
    application.router.add_get("/healthz", health)
    application.router.add_get("/metrics", make_aiohttp_handler(metrics.REGISTRY))
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        for port in ports:
            await web.TCPSite(runner, port=port).start()
        yield
    finally:
        await runner.cleanup()
