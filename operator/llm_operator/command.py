"""`fairlead operator`: one process that stands by, then works for as long as it holds the Lease."""

import argparse
import asyncio
import logging
import signal
import socket
import uuid
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import kopf
import prometheus_client
from aiohttp import web
from kubernetes.aio.client import ApiClient, Configuration

from llm_operator import handlers, metrics
from llm_operator.cluster import FAILURES, Cluster, described_failure, load_configuration
from llm_operator.lease import Lease
from llm_operator.reconcile import WORKERS, Reconciler
from llm_operator.settings import Settings

LEASE_NAME = "fairlead-operator"
OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
POLL_SECONDS = 1

logger = logging.getLogger(__name__)


def parser() -> argparse.ArgumentParser:
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
    return flags


def own_namespace() -> str:
    return OWN_NAMESPACE.read_text().strip() if OWN_NAMESPACE.exists() else "default"


def main(argv: list[str]) -> int:
    options = parser().parse_args(argv)
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
    return asyncio.run(run(settings, options.lease_namespace, options.health_port, options.metrics_port))


async def run(settings: Settings, lease_namespace: str, health_port: int, metrics_port: int) -> int:
    configuration = await load_configuration()
    server, thread = prometheus_client.start_http_server(metrics_port, registry=metrics.REGISTRY)
    try:
        async with ApiClient(configuration) as api, healthy(health_port):
            cluster = Cluster(api)
            identity = f"{socket.gethostname()}_{uuid.uuid4().hex[:8]}"
            lease = Lease(cluster, lease_namespace, LEASE_NAME, identity)
            stop = asyncio.Event()
            stop_on_signals(stop)
            if not await unless(stop, lead(cluster, lease)):
                return 0
            try:
                return await work(Reconciler(cluster, settings), lease, configuration, stop)
            finally:
                await lease.release()
    finally:
        server.shutdown()
        thread.join()


def stop_on_signals(stop: asyncio.Event) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)


async def unless(stop: asyncio.Event, preparation: Coroutine[Any, Any, None]) -> bool:
    """Whether the preparation ended before it was told to stop."""
    waiting = asyncio.create_task(stop.wait())
    preparing = asyncio.create_task(preparation)
    done, pending = await asyncio.wait((waiting, preparing), return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    if preparing in done:
        preparing.result()
    return preparing in done


async def lead(cluster: Cluster, lease: Lease) -> None:
    """Returns when there is something to watch and this operator may."""
    said = False
    while not await known(cluster):
        if not said:
            logger.info("waiting until the API server knows LLMDeployments")
            said = True
        await asyncio.sleep(POLL_SECONDS)
    await lease.acquire()


async def known(cluster: Cluster) -> bool:
    try:
        return await cluster.serves_llmdeployments()
    except FAILURES as error:
        logger.warning("the API server does not answer: %s", described_failure(error))
        return False


async def work(
    reconciler: Reconciler, lease: Lease, configuration: Configuration, stop: asyncio.Event
) -> int:
    """Until it is told to stop, or the lease is lost: then another works, and this process ends."""
    metrics.LEADER.set(1)
    keeping = asyncio.create_task(lease.keep())
    tasks = [keeping, asyncio.create_task(reconciler.relist_forever())]
    tasks += [asyncio.create_task(reconciler.work_forever()) for _ in range(WORKERS)]
    watching = asyncio.create_task(watch(reconciler, configuration, stop))
    done, _ = await asyncio.wait((watching, *tasks), return_when=asyncio.FIRST_COMPLETED)
    stop.set()
    for task in tasks:
        task.cancel()
    await asyncio.gather(watching, *tasks, return_exceptions=True)
    metrics.LEADER.set(0)
    if keeping in done:
        logger.error("the lease is lost")
        return 1
    for task in done:
        task.result()
    return 0


async def watch(reconciler: Reconciler, configuration: Configuration, stop: asyncio.Event) -> None:
    namespaces = reconciler.settings.namespaces
    ours = asyncio.all_tasks()
    tasks = await kopf.spawn_tasks(
        registry=handlers.registry(reconciler, configuration),
        settings=handlers.settings(),
        clusterwide=not namespaces,
        namespaces=namespaces,
        standalone=True,
        stop_flag=stop,
    )
    stop_on_signals(stop)  # kopf has taken the signals, and is slow to stop by those
    await kopf.run_tasks(tasks, ignored=ours)


@asynccontextmanager
async def healthy(port: int) -> AsyncIterator[None]:
    """Answers /healthz, standing by or at work."""

    async def answer(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    application = web.Application()
    application.router.add_get("/healthz", answer)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, port=port).start()
        yield
    finally:
        await runner.cleanup()
