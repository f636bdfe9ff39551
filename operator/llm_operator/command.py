"""`fairlead operator`: one process that stands by, and works for as long as it holds the Lease."""

import asyncio
import logging
import socket
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from aiohttp import ClientConnectionError, web
from kubernetes.aio.client import ApiClient
from prometheus_client.aiohttp import make_aiohttp_handler

from engine_server.contract.base.listening import ListenError
from engine_server.contract.base.logs import configure_logs
from llm_operator import metrics
from llm_operator.autoscaling.autoscaler import Autoscaler
from llm_operator.autoscaling.routers import Routers
from llm_operator.control.cluster import Access, Cluster, load_configuration
from llm_operator.control.deletion_costs import DeletionCosts
from llm_operator.control.lease import Lease
from llm_operator.control.reconcile import Reconciler
from llm_operator.control.root_keys import RootKeys
from llm_operator.control.scaling_reports import ScalingReports
from llm_operator.control.watching.claims import Claims
from llm_operator.control.watching.store import Store
from llm_operator.flags import LEASE_NAME, Options, parse
from llm_operator.informer import Informer, cancel, on_signals

# Writes to the cluster until it is cancelled. Only the operator that holds the Lease runs it.
Writer = Callable[[], Coroutine[Any, Any, None]]

# Between an error of a writer and its next start.
RESTART_SECONDS = 5.0

logger = logging.getLogger(__name__)


class NoClusterError(Exception):
    """No usable configuration of a cluster; the message says why."""


def main(argv: list[str]) -> int:
    """Run the operator; the return value is the process's exit status."""
    options = parse(argv)
    configure_logs("operator", options.log_level, options.log_format)
    if logging.getLogger().level == logging.INFO:
        # kopf logs every event at this level.
        logging.getLogger("kopf").setLevel(logging.WARNING)
    try:
        return asyncio.run(run_until_signal(options))
    except (NoClusterError, ListenError) as error:
        logger.error("%s", error)
        return 1


async def run_until_signal(options: Options) -> int:
    """Run the operator until SIGINT or SIGTERM; return the exit status."""
    stop = asyncio.Event()
    on_signals(stop.set)
    try:
        configuration = await load_configuration()
    except Exception as error:  # the client raises anything for a malformed file
        raise NoClusterError(
            f"no cluster: {error}; KUBECONFIG names the file with its address, or a pod has a service account"
        ) from error
    return await run(options, configuration, stop)


async def run(options: Options, configuration: Access, stop: asyncio.Event) -> int:
    """Stand by, then work, until `stop` is set or the lease is lost; return the exit status."""
    settings = options.settings
    # None while standing by.
    informers: list[Informer] = []
    async with ApiClient(configuration) as api, serve_health(options.ports, informers):
        cluster = Cluster(api)
        root_keys = None
        if options.key_secrets is not None:
            root_keys = RootKeys(cluster, options.lease_namespace, options.key_secrets)
        # Of its own, so that it counts the answers to reconciles alone.
        store = Store(claims=Claims(settings.served_name_organizations))
        reconciler = Reconciler(Cluster(api), settings, root_keys, store=store)
        writers: list[Writer] = [reconciler.run]
        if options.router_service is not None:
            scales = reconciler.store.scales
            key = root_keys.internal_key if root_keys is not None else str
            routers = Routers(cluster, options.router_service, key)
            reconciler.scaling_reports = ScalingReports(reconciler.queue.add)
            autoscaler = Autoscaler(cluster, settings.operator, scales, routers, reconciler.scaling_reports)
            writers.append(autoscaler.run)
            reconciler.deletion_costs = DeletionCosts(cluster, routers.reports)
        identity = f"{socket.gethostname()}_{uuid.uuid4().hex[:8]}"
        lease = Lease(cluster, options.lease_namespace, LEASE_NAME, identity)
        if not await acquire(lease, stop):
            await lease.release()
            return 0
        for namespace in settings.namespaces or ("",):
            informers.append(
                Informer(cluster, reconciler.store, reconciler.queue, configuration, settings, namespace)
            )
        return await work(writers, lease, informers, stop)


async def acquire(lease: Lease, stop: asyncio.Event) -> bool:
    """Wait until this operator holds the lease; return False if `stop` is set before."""
    acquiring, stopping = asyncio.create_task(lease.acquire()), asyncio.create_task(stop.wait())
    ended, _ = await asyncio.wait((acquiring, stopping), return_when=asyncio.FIRST_COMPLETED)
    await cancel(acquiring, stopping)
    if stopping in ended:
        return False
    acquiring.result()
    return True


async def work(
    writers: Sequence[Writer], lease: Lease, informers: Sequence[Informer], stop: asyncio.Event
) -> int:
    """Reconcile and scale until `stop` is set or the lease is lost; return the exit status.

    After a lost lease the process ends, since another operator works then.
    """
    asyncio.get_running_loop().set_exception_handler(partial(log_error, stop))
    watching = [asyncio.create_task(informer.run(stop)) for informer in informers]
    leading = asyncio.create_task(lead(writers, lease, informers))
    stopping = asyncio.create_task(stop.wait())
    ended, _ = await asyncio.wait((stopping, leading, *watching), return_when=asyncio.FIRST_COMPLETED)
    # The next operator starts as soon as the lease is free, so nothing may be written any more.
    await cancel(leading)
    await lease.release()
    stop.set()
    await asyncio.gather(*watching)
    for task in ended:
        task.result()
    if leading in ended:
        logger.error("the lease is lost")
    return int(stopping not in ended)


def log_error(stop: asyncio.Event, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error that no task awaits, but for those of calls of kopf's discovery that the stop has cut off."""
    if not (stop.is_set() and isinstance(context.get("exception"), ClientConnectionError)):
        loop.default_exception_handler(context)


async def lead(writers: Iterable[Writer], lease: Lease, informers: Iterable[Informer]) -> None:
    """Reconcile and scale while the lease is held; return when another operator has it.

    While the API server does not answer, this operator cannot know who holds the lease, and writes nothing.
    """
    while True:
        metrics.LEADER.set(1)
        writing = asyncio.create_task(write(writers, informers))
        keeping = asyncio.create_task(lease.keep())
        try:
            ended, _ = await asyncio.wait((writing, keeping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            metrics.LEADER.set(0)
            await cancel(writing, keeping)
        for task in ended:
            task.result()
        if lease.holder == lease.identity:
            logger.warning("the API server does not answer; nothing is reconciled before it does")
        if not await lease.regain():
            return
        logger.info("the API server answers again")
        # Watches may have been interrupted too, and wait for answers that will not come.
        for informer in informers:
            informer.is_stale.set()


async def write(writers: Iterable[Writer], informers: Iterable[Informer]) -> None:
    """Run the writers once every readable namespace is listed: only then are conflicts of served names known."""
    for informer in informers:
        await informer.tried.wait()
    async with asyncio.TaskGroup() as group:
        for writer in writers:
            group.create_task(keep_running(writer))


async def keep_running(writer: Writer) -> None:
    """Run a writer until cancelled, and again after an error: nothing that it reads may end the process."""
    while True:
        try:
            await writer()
        except Exception:
            logger.exception("a writer failed; it starts again in %g s", RESTART_SECONDS)
        await asyncio.sleep(RESTART_SECONDS)


@asynccontextmanager
async def serve_health(ports: Iterable[int], informers: Iterable[Informer]) -> AsyncIterator[None]:
    """Serve /healthz and /metrics on `ports` inside the block, while standing by and while working.

    Raises ListenError.
    """

    async def health(_: web.Request) -> web.Response:
        problems = [problem for informer in informers for problem in informer.problems()]
        return web.Response(text="\n".join(problems or ["ok"]) + "\n", status=503 if problems else 200)

    application = web.Application()
    application.router.add_get("/healthz", health)
    application.router.add_get("/metrics", make_aiohttp_handler(metrics.REGISTRY))
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        for port in ports:
            try:
                await web.TCPSite(runner, port=port).start()
            except (OSError, OverflowError) as error:
                raise ListenError(f"can't listen on port {port}: {error}") from error
        yield
    finally:
        await runner.cleanup()
