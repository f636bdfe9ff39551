"""`fairlead operator`: one process that stands by, then works for as long as it holds the Lease."""

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
from llm_operator import handlers, metrics
from llm_operator.cluster import Cluster, load_configuration
from llm_operator.lease import Lease
from llm_operator.reconcile import RETRY_SECONDS, Reconciler
from llm_operator.settings import Settings

LEASE_NAME = "fairlead-operator"
OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

logger = logging.getLogger(__name__)


def own_namespace() -> str:
    return OWN_NAMESPACE.read_text().strip() if OWN_NAMESPACE.exists() else DEFAULT_NAMESPACE


def main(argv: list[str]) -> int:
    flags = argparse.ArgumentParser(prog="fairlead operator", description="Turns LLMDeployments into pods.")
    flags.add_argument("--engine-image", required=True, help="for LLMDeployments without engine.image")
    flags.add_argument(
        "--namespace", action="append", default=[], help="watch this one; repeatable; default: all of them"
    )
    flags.add_argument(
        "--lease-namespace", default=own_namespace(), help="where the Lease is (default: %(default)s)"
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
        logging.getLogger("kopf").setLevel(logging.WARNING)  # it tells of each event
    settings = Settings(
        engine_image=options.engine_image,
        namespaces=tuple(options.namespace),
        allow_service_account=options.allow_service_account,
    )
    return asyncio.run(run(settings, options.lease_namespace, (options.health_port, options.metrics_port)))


async def run(settings: Settings, lease_namespace: str, ports: tuple[int, int]) -> int:
    configuration = await load_configuration()
    async with ApiClient(configuration) as api, answering(ports):
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
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, act)


async def stand_by(reconciler: Reconciler, lease: Lease) -> None:
    """Returns when there is something to watch and this operator may."""
    while not await reconciler.relist():  # noqa: ASYNC110 (it asks the API server)
        await asyncio.sleep(RETRY_SECONDS)
    await lease.acquire()
    await reconciler.relist()  # who holds a name is known only when all are


async def work(reconciler: Reconciler, lease: Lease, configuration: Configuration) -> int:
    """Until it is told to stop, or the lease is lost: then another works, and this process ends."""
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
    on_signals(stop.set)  # kopf is quick to stop by the event, and slow by anything else
    reconciling = asyncio.create_task(reconciler.run())
    await kopf.run_tasks([*tasks, keeping, reconciling], ignored=others)
    if not keeping.cancelled():
        logger.error("the lease is lost")
    return int(not keeping.cancelled())


@asynccontextmanager
async def answering(ports: Iterable[int]) -> AsyncIterator[None]:
    """/healthz and /metrics, standing by or at work."""

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
