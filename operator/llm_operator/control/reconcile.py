"""The control loop: observe, decide, carry out, assess, report. It is level-triggered: events only wake it."""

import asyncio
import logging
from collections import defaultdict
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from kubernetes.aio.client import ApiException

from engine_server.contract.api import Key
from llm_operator import metrics
from llm_operator.api.status import Condition, Status
from llm_operator.control.api_errors import FAILURES, describe, is_rejection
from llm_operator.control.claims import Claims, claim_of
from llm_operator.control.cluster import Cluster
from llm_operator.control.queue import WorkQueue
from llm_operator.control.record import Record
from llm_operator.observed import ChildKey, Manifest, Observed, Problem
from llm_operator.plan.decide import Decision, decide
from llm_operator.plan.plan import child_keys
from llm_operator.settings import Settings
from llm_operator.status.assess import assess

WORKERS = 8
RELIST_SECONDS = 300
RETRY_SECONDS = 2

logger = logging.getLogger(__name__)


class RefusedError(Exception):
    """The plan could not be carried out. The status reports why, and it is retried."""


@dataclass(slots=True)
class Reconciler:
    """Brings the cluster to the state that LLMDeployments ask for, one at a time in each worker."""

    cluster: Cluster
    settings: Settings
    queue: WorkQueue = field(default_factory=WorkQueue)
    claims: Claims = field(default_factory=Claims)
    records: defaultdict[Key, Record] = field(default_factory=lambda: defaultdict(Record))

    # --- events

    def wake(self, *keys: Key) -> None:
        for key in keys:
            self.queue.add(key)

    def saw(self, manifest: Manifest) -> None:
        """Take note of an LLMDeployment that was created or changed."""
        key = Key.of(manifest)
        self.wake(key, *self.claims.put(key, claim_of(manifest)))

    def saw_gone(self, key: Key) -> None:
        """Forget an LLMDeployment that was deleted."""
        self.wake(*self.claims.put(key, None))
        if record := self.records.pop(key, None):
            record.count([])

    def saw_child(self, key: Key, child: ChildKey) -> None:
        """Take note of a child that was created or changed."""
        self.records[key].children.add(child)
        self.wake(key)

    def saw_child_gone(self, key: Key, child: ChildKey) -> None:
        self.records[key].children.discard(child)
        self.wake(key)

    async def relist(self) -> bool:
        """Make up for missed events. Return False if the API server does not answer."""
        try:
            listed = await self.cluster.llmdeployments(self.settings.namespaces)
        except FAILURES as error:
            logger.warning("could not list LLMDeployments: %s", describe(error))
            return False
        for key in self.claims.by_key.keys() - {Key.of(manifest) for manifest in listed}:
            self.saw_gone(key)
        for manifest in listed:
            self.saw(manifest)
        return True

    # --- work

    async def run(self) -> None:
        metrics.QUEUED.set_function(lambda: len(self.queue.due))
        async with asyncio.TaskGroup() as group:
            for _ in range(WORKERS):
                group.create_task(self.work())
            while True:
                listed = await self.relist()
                await asyncio.sleep(RELIST_SECONDS if listed else RETRY_SECONDS)

    async def work(self) -> None:
        while True:
            key = await self.queue.take()
            try:
                with metrics.RECONCILE_SECONDS.time():
                    again_after = await self.reconcile(key)
            except Exception as error:
                metrics.RECONCILES.labels("error").inc()
                delay = self.queue.retry(key)
                unexpected = None if isinstance(error, (RefusedError, *FAILURES)) else error
                logger.warning("%s: %s; retry in %.1f s", key, describe(error), delay, exc_info=unexpected)
            else:
                metrics.RECONCILES.labels("success").inc()
                self.queue.done(key, again_after)

    async def reconcile(self, key: Key) -> float | None:
        """Carry out one LLMDeployment. Return the seconds after which to do so again without an event, if ever."""
        manifest = await self.cluster.llmdeployment(key)
        if manifest is None:
            self.saw_gone(key)
            return None
        if "deletionTimestamp" in manifest["metadata"]:
            return None
        observed = await self.observe(key, manifest)
        decision = decide(observed, self.settings)
        observed = await self.carry_out(key, decision, observed)
        await self.report(key, observed, assess(decision.spec, observed))
        if observed.refusal is not None and decision.may_succeed_later:
            raise RefusedError(observed.refusal.message)
        return decision.plan.requeue_after

    async def observe(self, key: Key, manifest: Manifest) -> Observed:
        known = dict.fromkeys((*child_keys(key.name), *sorted(self.records[key].children)))
        children, pods = await asyncio.gather(
            self.cluster.children(key.namespace, known), self.cluster.pods(key)
        )
        return Observed(
            subject=manifest,
            children=children,
            pods=tuple(pods),
            name_holders=self.claims.held_by_others(key),
            now=datetime.now(UTC),
        )

    async def carry_out(self, key: Key, decision: Decision, observed: Observed) -> Observed:
        """Apply and prune. Return `observed` with the children that exist afterwards, and with a refusal, if any."""
        children = dict(observed.children)
        record = self.records[key]
        refusal = decision.refusal
        try:
            for child, planned in decision.plan.apply.items():
                if not record.is_settled(child, planned, children.get(child)):
                    children[child] = await self.cluster.apply(key.namespace, child, planned)
                    record.settle(child, planned, children[child])
            for child in decision.plan.delete:
                await self.cluster.delete(key.namespace, child, children.pop(child)["metadata"]["uid"])
                logger.info("%s: deleted %s %s, which is not planned any more", key, child.kind, child.name)
        except ApiException as error:
            if not is_rejection(error):
                raise
            refusal = Problem("Refused", describe(error))
        return replace(observed, children=children, refusal=refusal)

    async def report(self, key: Key, observed: Observed, status: Status) -> None:
        """Write a status that differs from the reported one. An equal one is not written: a write wakes us again."""
        self.records[key].count([(condition.type, condition.status) for condition in status.conditions])
        if status.as_manifest() == observed.reported:
            return
        await self.cluster.report(key, status.as_manifest())
        before = {entry["type"]: entry for entry in observed.reported.get("conditions", ())}
        for condition in status.conditions:
            if is_news(condition, before.get(condition.type, {})):
                kind = "Warning" if condition.is_bad else "Normal"
                await self.cluster.post_event(observed.subject, kind, condition.reason, condition.message)


def is_news(condition: Condition, last: Manifest) -> bool:
    """Return True for a change that deserves an event: Ready turned, or there is a new reason why something is bad."""
    if condition.type == "Ready":
        return condition.status != str(last.get("status", "False"))
    return condition.is_bad and (last.get("status"), last.get("reason")) != ("True", condition.reason)
