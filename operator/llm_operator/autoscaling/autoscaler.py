"""The loop that scales LLMDeployments with `autoscaling`, as a client of their scale subresource."""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
from kubernetes.aio.client import ApiException

from engine_server.contract.cluster.api import Key
from engine_server.contract.cluster.demand import DemandReport, DeploymentDemand
from llm_operator import metrics
from llm_operator.api.status import Scaling
from llm_operator.autoscaling.decision import Decision, decide
from llm_operator.autoscaling.history import History, Load, Sample, Summary
from llm_operator.autoscaling.routers import Reports, Routers
from llm_operator.control.api_errors import FAILURES, describe
from llm_operator.control.cluster import Cluster
from llm_operator.control.events import Events
from llm_operator.control.scaling_reports import ScalingReports
from llm_operator.control.watching.scales import Scale, Scales
from llm_operator.observed import Manifest
from llm_operator.status.news import News

INTERVAL_SECONDS = 1.0
# After a failed write.
RETRY_SECONDS = 10.0
# Most writes end in this time. Decisions don't wait for others.
WRITE_SECONDS = 0.2
# An older report of an engine says nothing of its KV cache: engines report with the head of each answer.
KV_REPORT_SECONDS = 30.0

# Reasons of Events.
SCALED_UP, SCALED_DOWN = "ScaledUp", "ScaledDown"

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Track:
    """The demand for one LLMDeployment so far, and the last attempt to scale it."""

    uid: str
    history: History = field(default_factory=History)
    # The replicas at the last decision.
    replicas: int | None = None
    # The resource version that was scaled: the watch has not reported the result while it is the current one.
    scaled_version: str = ""
    # The replicas that were written last, and why.
    scaled: tuple[int, str] | None = None
    # The write that has not ended.
    writing: asyncio.Task[None] | None = None
    # The event loop's time before which nothing is written, after a failure.
    not_before: float = 0.0


@dataclass(slots=True)
class Autoscaler:
    """Scales by the demand that routers report. Only the operator that holds the Lease runs it."""

    cluster: Cluster
    # This operator, as it is recorded on the LLMDeployments that it manages.
    operator: str
    scales: Scales
    routers: Routers
    # None where no status has the decisions.
    scaling_reports: ScalingReports | None = None
    tracks: dict[Key, Track] = field(default_factory=dict)
    events: Events = field(init=False)
    # Writes of scales and of Events.
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        # A change is rarer than what it causes, so that each is written.
        self.events = Events(self.cluster, interval=timedelta(0))

    async def run(self) -> None:
        """Decide at intervals until cancelled."""
        loop = asyncio.get_running_loop()
        try:
            async with aiohttp.ClientSession() as session:
                while True:
                    next_time = loop.time() + INTERVAL_SECONDS
                    if self.scales.by_key or self.tracks:
                        await self.scale_all(await self.routers.ask(session), loop.time())
                    else:
                        self.routers.rest()
                    await asyncio.sleep(next_time - loop.time())
        finally:
            await self.stop()

    async def stop(self) -> None:
        """Cancel the writes that have not ended."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def start(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run a write beside the decisions: one that hangs delays none."""
        task = asyncio.create_task(coroutine, name=name)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    async def scale_all(self, reports: Reports, now: float) -> None:
        """Decide on every LLMDeployment that this operator manages, and write what has changed."""
        scales = {key: scale for key, scale in self.scales.by_key.items() if scale.operator == self.operator}
        self.follow(scales)
        current, last = by_deployment(reports.current), by_deployment(reports.silent)
        known = [
            {Key(each.namespace, each.name) for each in report.deployments} for report in deciding(reports)
        ]
        writes = []
        for key, scale in scales.items():
            is_complete = reports.is_complete and all(key in keys for keys in known)
            try:
                sample = sample_of(
                    current[key] + last[key],
                    scale,
                    is_complete=is_complete,
                    may_be_idle=not reports.silent,
                    now=now,
                )
                decision, summary = self.decide(key, scale, sample)
            except Exception:  # a fault with one LLMDeployment stops the scaling of no other
                logger.exception("%s: no decision on its replicas", key)
                continue
            track = self.tracks[key]
            self.tell(key, scale, decision, now)
            is_awaited = track.scaled_version == scale.resource_version or track.writing is not None
            if decision.replicas != scale.replicas and not is_awaited and now >= track.not_before:
                track.writing = self.start(self.write(key, scale, decision, summary), f"scale of {key}")
                writes.append(track.writing)
        if writes:
            await asyncio.wait(writes, timeout=WRITE_SECONDS)

    def tell(self, key: Key, scale: Scale, decision: Decision, now: float) -> None:
        """Report a decision, and a change of the number since the last one, whoever has made it."""
        if self.scaling_reports is not None:
            self.scaling_reports.put(key, Scaling(decision.replicas, decision.reason), now)
        track = self.tracks[key]
        before, track.replicas = track.replicas, scale.replicas
        if before is None or before == scale.replicas:
            return
        is_ours = track.scaled is not None and track.scaled[0] == scale.replicas
        cause = (
            track.scaled[1] if track.scaled and is_ours else ", by another client of the scale subresource"
        )
        reason = SCALED_UP if scale.replicas > before else SCALED_DOWN
        change = News("Normal", reason, f"from {before} to {scale.replicas} replicas{cause}")
        recorded = self.events.record(subject_of(key, scale), [change], datetime.now(UTC))
        self.start(recorded, f"event of {key}")

    def follow(self, scales: Mapping[Key, Scale]) -> None:
        """Begin a track for each new LLMDeployment, one that has taken the name of another included."""
        for key, track in list(self.tracks.items()):
            if key not in scales or scales[key].uid != track.uid:
                del self.tracks[key]
                self.events.forget(key)
                metrics.SCALING.remove(key)
                if self.scaling_reports is not None:
                    self.scaling_reports.remove(key)
        for key in scales.keys() - self.tracks.keys():
            self.tracks[key] = Track(scales[key].uid)

    def decide(self, key: Key, scale: Scale, sample: Sample) -> tuple[Decision, Summary]:
        """Return the decision on one LLMDeployment, with the demand that it follows from."""
        summary = self.tracks[key].history.record(sample, scale.autoscaling)
        decision = decide(
            scale.autoscaling,
            scale.replicas,
            scale.ready_replicas,
            summary,
            # At zero routers keep the pause.
            has_failed_start=scale.has_failed_start
            or (scale.autoscaling.min > 0 and time.time() < scale.paused_until),
        )
        metrics.SCALING.put(key, decision.replicas, decision.reason)
        return decision, summary

    async def write(self, key: Key, scale: Scale, decision: Decision, summary: Summary) -> None:
        """Scale an LLMDeployment that has not changed since: a wake by a router is never undone."""
        track = self.tracks[key]
        try:
            await self.cluster.scale(key, decision.replicas, scale.resource_version)
        except FAILURES as error:
            # After a conflict the watch brings the newer object at once.
            if not (isinstance(error, ApiException) and error.status == 409):
                logger.warning("%s: cannot be scaled to %d: %s", key, decision.replicas, describe(error))
                track.not_before = asyncio.get_running_loop().time() + RETRY_SECONDS
            return
        finally:
            track.writing = None
        track.scaled_version = scale.resource_version
        requests, kv = summary.stable
        demand = f"on average {requests:.1f} requests in flight or held, and {kv:.2f} KV caches in use"
        cause = f" ({decision.reason}): {demand}"
        track.scaled = decision.replicas, cause
        logger.info("%s: scaled from %d to %d%s", key, scale.replicas, decision.replicas, cause)


def subject_of(key: Key, scale: Scale) -> Manifest:
    """Return the part of an LLMDeployment that its Events need."""
    return {"metadata": {"namespace": key.namespace, "name": key.name, "uid": scale.uid}}


def deciding(reports: Reports) -> Iterable[DemandReport]:
    """Return the reports that must know a deployment before its demand is known.

    A silent router need not: the deployment may be newer than its last report. It must where no other one answers, and
    where the report had entries that could not be read.
    """
    return (*reports.current, *(one for one in reports.silent if one.num_invalid or not reports.current))


def by_deployment(reports: Iterable[DemandReport]) -> Mapping[Key, list[DeploymentDemand]]:
    """Return the demand for each LLMDeployment, one entry for each router that knows it."""
    demands: defaultdict[Key, list[DeploymentDemand]] = defaultdict(list)
    for report in reports:
        for demand in report.deployments:
            demands[Key(demand.namespace, demand.name)].append(demand)
    return demands


def sample_of(
    demands: Iterable[DeploymentDemand],
    scale: Scale,
    *,
    is_complete: bool,
    now: float,
    may_be_idle: bool = True,
) -> Sample:
    """Return the sum of the routers' requests, and of each engine's KV use as it was reported last.

    may_be_idle: False while a router that is ready is silent, and may have got requests.
    """
    requests, idle_seconds = 0, float("inf") if may_be_idle else 0.0
    # By address: the age of the report, and the share in use.
    newest: dict[str, tuple[float, float]] = {}
    for demand in demands:
        requests += demand.in_flight + demand.held
        idle_seconds = min(idle_seconds, demand.idle_seconds)
        for load in demand.endpoints:
            if load.age <= KV_REPORT_SECONDS:
                report = (load.age, load.kv)
                newest[load.address] = min(newest.get(load.address, report), report)
    kv = sum(share for _, share in newest.values())
    return Sample(
        now,
        Load(requests, kv),
        idle_seconds,
        is_complete,
        is_ready=scale.ready_replicas > 0,
        is_at_zero=scale.replicas == 0,
    )
