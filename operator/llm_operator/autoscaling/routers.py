"""The routers: found by the EndpointSlices of their Service, and asked for the demand on their internal port."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import aiohttp
import msgspec

from engine_server.contract.authority import authority
from engine_server.contract.bodies import read_at_most
from engine_server.contract.demand import DEMAND_PATH, DemandReport
from engine_server.contract.endpoint_slices import EndpointSlice, EndpointSliceList, addresses_by_pod
from engine_server.contract.labels import METRICS_PORT, SERVICE_NAME_LABEL
from llm_operator.control.api_errors import FAILURES, describe
from llm_operator.control.cluster import Cluster
from llm_operator.control.resources import Resource

ENDPOINT_SLICES = Resource("discovery.k8s.io", "v1", "endpointslices")
METRICS_PORT_NAME = "metrics"
LIST_SECONDS = 3.0
ANSWER_SECONDS = 1.0
# An answer counts for so long, so that a router that is busy for a moment is not unknown.
PATIENCE_SECONDS = 5.0
# A longer answer is not a report.
LONGEST_ANSWER = 16 * 1024 * 1024

logger = logging.getLogger(__name__)


class RouterService(NamedTuple):
    """The Service whose endpoints are the routers."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the Service in NAMESPACE/NAME. Raises ValueError for anything else."""
        namespace, slash, name = text.partition("/")
        if not (namespace and slash and name) or "/" in name:
            raise ValueError(f"a Service is NAMESPACE/NAME, not {text!r}")
        return cls(namespace, name)


class Reports(NamedTuple):
    """The reports of the routers that answer."""

    reports: tuple[DemandReport, ...]
    # There is at least one router, and all have answered.
    is_complete: bool


class Answer(NamedTuple):
    """The last report of a router, and the event loop's time at which it came."""

    report: DemandReport
    time: float


@dataclass(slots=True)
class Routers:
    """Asks every router, those that start or drain included: each may have requests."""

    cluster: Cluster
    service: RouterService
    # Returns the key for the routers' internal pages; empty for none.
    key: Callable[[], str] = str
    # Addresses as HOST:PORT, and the event loop's time at which they were listed; None before the first list.
    addresses: frozenset[str] = frozenset()
    listed_at: float | None = None
    # Why the last list failed, as it was logged; empty if it did not.
    failure: str = ""
    answers: dict[str, Answer] = field(default_factory=dict)
    # Those whose demand is unknown, as they were logged.
    unknown: set[str] = field(default_factory=set)

    async def ask(self, session: aiohttp.ClientSession) -> Reports:
        """Return the current reports."""
        await self._find()
        await asyncio.gather(*(self._ask(session, address) for address in self.addresses))
        oldest = asyncio.get_running_loop().time() - PATIENCE_SECONDS
        self.answers = {
            address: answer
            for address, answer in self.answers.items()
            if address in self.addresses and answer.time >= oldest
        }
        unknown = {f"the router at {address}" for address in self.addresses - self.answers.keys()}
        if self.listed_at is None or self.listed_at < oldest or not self.addresses:
            unknown.add(f"the endpoints of Service {self.service}")
        self._note(unknown)
        return Reports(tuple(answer.report for answer in self.answers.values()), not unknown)

    async def reports(self) -> tuple[DemandReport, ...]:
        """Return the current reports for a single use."""
        async with aiohttp.ClientSession() as session:
            return (await self.ask(session)).reports

    async def _find(self) -> None:
        """List the routers at intervals. Those that were found last stay in use if it fails."""
        now = asyncio.get_running_loop().time()
        if self.listed_at is not None and now < self.listed_at + LIST_SECONDS:
            return
        path = ENDPOINT_SLICES.path(self.service.namespace)
        try:
            page = await self.cluster.call(
                "GET", path, labelSelector=f"{SERVICE_NAME_LABEL}={self.service.name}"
            )
            listed = msgspec.convert(page, EndpointSliceList)
        except (*FAILURES, msgspec.ValidationError) as error:
            if describe(error) != self.failure:
                self.failure = describe(error)
                logger.warning("cannot list the routers: %s", self.failure)
            return
        self.failure = ""
        self.addresses = frozenset(addresses(listed.items))
        self.listed_at = now

    async def _ask(self, session: aiohttp.ClientSession, address: str) -> None:
        """Store the report of one router, if it answers."""
        try:
            key = self.key()
            async with session.get(
                f"http://{address}{DEMAND_PATH}",
                headers={"Authorization": f"Bearer {key}"} if key else {},
                allow_redirects=False,
                raise_for_status=True,
                timeout=aiohttp.ClientTimeout(total=ANSWER_SECONDS),
            ) as response:
                report = DemandReport.decode(await read_at_most(LONGEST_ANSWER, response.content.iter_any()))
        except (aiohttp.ClientError, OSError, ValueError) as error:
            logger.debug("the router at %s: %s", address, str(error) or type(error).__name__)
            return
        before = self.answers.get(address)
        if report.num_invalid > (0 if before is None else before.report.num_invalid):
            logger.warning(
                "the router at %s: %d of its deployments have no valid demand, and are not scaled down",
                address, report.num_invalid,
            )  # fmt: skip
        self.answers[address] = Answer(report, asyncio.get_running_loop().time())

    def _note(self, unknown: set[str]) -> None:
        """Log what begins and what ends to be unknown."""
        for subject in sorted(unknown - self.unknown):
            logger.warning("no demand from %s: nothing is scaled down", subject)
        for subject in sorted(self.unknown - unknown):
            logger.info("%s: answering, or gone", subject)
        self.unknown = unknown


def addresses(slices: Iterable[EndpointSlice]) -> Iterator[str]:
    """Yield one HOST:PORT for each router, whatever its state and whichever slices have it."""
    found = addresses_by_pod(
        slices,
        port_of=lambda one: one.port(METRICS_PORT_NAME) or METRICS_PORT,
        includes=lambda endpoint: True,
    )
    yield from (authority(host, port) for host, port in found.values())
