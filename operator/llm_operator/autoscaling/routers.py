"""The routers: found by the EndpointSlices of their Service, and asked for the demand on their internal port."""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import aiohttp
import msgspec

from engine_server.contract.base.authority import authority
from engine_server.contract.base.bodies import read_at_most
from engine_server.contract.cluster.demand import DEMAND_PATH, DemandReport
from engine_server.contract.cluster.endpoint_slices import (
    EndpointSlice,
    EndpointSliceList,
    SliceEndpoint,
    addresses_by_pod,
)
from engine_server.contract.cluster.labels import METRICS_PORT, SERVICE_NAME_LABEL
from llm_operator import metrics
from llm_operator.control.api_errors import FAILURES, describe
from llm_operator.control.cluster import Cluster
from llm_operator.kinds import Resource

ENDPOINT_SLICES = Resource("discovery.k8s.io", "v1", "endpointslices")
METRICS_PORT_NAME = "metrics"
LIST_SECONDS = 3.0
ANSWER_SECONDS = 1.0
# An answer counts for so long, so that a router that is busy for a moment is not unknown.
PATIENCE_SECONDS = 5.0
# After such a silence a router that is not ready is gone. Of one that is ready the last demand counts.
LOST_SECONDS = 60.0
# What follows from the silence of a router.
NOT_SCALED_DOWN = "nothing is scaled down"
NOT_TO_ZERO = "its last one counts, and nothing is scaled to zero"
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
    """The demand of the routers."""

    # Of those that answer.
    current: tuple[DemandReport, ...]
    # There is at least one router, and the demand of all is known.
    is_complete: bool
    # The last reports of those that are ready and have long been silent: since then they may have got requests, also
    # for deployments that they did not know. Empty ones of those that have never answered.
    silent: tuple[DemandReport, ...] = ()


@dataclass(slots=True)
class Routers:
    """Asks every router, those that start or drain included: each may have requests."""

    cluster: Cluster
    service: RouterService
    # Returns the key for the routers' internal pages; empty for none.
    key: Callable[[], str] = str
    # Addresses as HOST:PORT with whether each is ready, and the event loop's time at which they were listed; None
    # before the first list.
    addresses: dict[str, bool] = field(default_factory=dict)
    listed_at: float | None = None
    # Why the last list failed, as it was logged; empty if it did not.
    failure: str = ""
    # The event loop's time at which `ask` ended last; None before.
    asked_at: float | None = None
    # The last report of each router that is listed.
    answers: dict[str, DemandReport] = field(default_factory=dict)
    # The event loop's time at which each answered last, or was listed first.
    heard: dict[str, float] = field(default_factory=dict)
    # Those that do not answer, with what follows, as they were logged.
    unheard: dict[str, str] = field(default_factory=dict)

    async def ask(self, session: aiohttp.ClientSession) -> Reports:
        """Return the current reports. After a while in which nobody asked, no router has been silent."""
        loop = asyncio.get_running_loop()
        if self.asked_at is not None and loop.time() - self.asked_at > PATIENCE_SECONDS:
            self.answers.clear()
            self.heard.clear()
        await self._find()
        await asyncio.gather(*(self._ask(session, address) for address in self.addresses))
        now = self.asked_at = loop.time()
        self.answers = {one: report for one, report in self.answers.items() if one in self.addresses}
        self.heard = {address: self.heard.get(address, now) for address in self.addresses}
        silences = {address: now - heard for address, heard in self.heard.items()}
        lost = {address for address, seconds in silences.items() if seconds > LOST_SECONDS}
        gone = {address for address in lost if not self.addresses[address]}
        silent = lost - gone
        current = {one for one in self.answers if silences[one] <= PATIENCE_SECONDS}
        known = current | silent

        unheard = {f"the router at {one}": NOT_SCALED_DOWN for one in self.addresses.keys() - known - gone}
        if (
            self.listed_at is None
            or now - self.listed_at > PATIENCE_SECONDS
            or not self.answers.keys() & known
        ):
            unheard.setdefault(f"the endpoints of Service {self.service}", NOT_SCALED_DOWN)
        is_complete = not unheard
        unheard |= {f"the router at {one}": NOT_TO_ZERO for one in silent}
        self._note(unheard)
        return Reports(self._last(current, silences), is_complete, self._last(silent, silences))

    def _last(self, routers: Iterable[str], silences: Mapping[str, float]) -> tuple[DemandReport, ...]:
        """Return the last reports of these routers."""
        return tuple(aged(self.answers.get(one, DemandReport(())), silences[one]) for one in sorted(routers))

    def rest(self) -> None:
        """Record that nothing is scaled by reports, so that no router's silence matters."""
        self._note({})

    async def reports(self) -> tuple[DemandReport, ...]:
        """Return the current reports for a single use."""
        async with aiohttp.ClientSession() as session:
            reports = await self.ask(session)
            return reports.current + reports.silent

    async def _find(self) -> None:
        """List the routers at intervals. Those that were found last stay in use if it fails."""
        now = asyncio.get_running_loop().time()
        if self.listed_at is not None and now < self.listed_at + LIST_SECONDS:
            return
        path = ENDPOINT_SLICES.path(self.service.namespace)
        try:
            # A list that hangs delays decisions by less than a gap in the demand.
            async with asyncio.timeout(LIST_SECONDS):
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
        self.addresses = addresses(listed.items)
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
        if report.num_invalid > (0 if before is None else before.num_invalid):
            logger.warning(
                "the router at %s: %d of its deployments have no valid demand, and are not scaled down",
                address, report.num_invalid,
            )  # fmt: skip
        self.answers[address] = report
        self.heard[address] = asyncio.get_running_loop().time()

    def _note(self, unheard: dict[str, str]) -> None:
        """Log who begins to be silent, with what follows, and who does not any more."""
        for subject, effect in sorted(unheard.items()):
            if self.unheard.get(subject) != effect:
                logger.warning("no demand from %s: %s", subject, effect)
        for subject in sorted(self.unheard.keys() - unheard.keys()):
            logger.info("%s: answering, or gone", subject)
        self.unheard = unheard
        metrics.UNKNOWN_ROUTERS.set(len(unheard))


def aged(report: DemandReport, seconds: float) -> DemandReport:
    """Return a report as it is after so many seconds without a newer one."""
    change = msgspec.structs.replace
    return change(
        report,
        deployments=tuple(
            change(each, endpoints=tuple(change(load, age=load.age + seconds) for load in each.endpoints))
            for each in report.deployments
        ),
    )


def addresses(slices: Collection[EndpointSlice]) -> dict[str, bool]:
    """Return one HOST:PORT for each router, whichever slices have it, and whether the router is ready."""

    def find(includes: Callable[[SliceEndpoint], bool]) -> dict[str, tuple[str, int]]:
        return addresses_by_pod(slices, lambda one: one.port(METRICS_PORT_NAME) or METRICS_PORT, includes)

    ready = find(lambda endpoint: endpoint.conditions.ready is not False)
    return {authority(host, port): pod in ready for pod, (host, port) in find(lambda endpoint: True).items()}
