"""One change's way: look, plan, apply, report. Level-triggered: events only say when to look again."""

import asyncio
import json
import logging
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from kubernetes.aio.client import ApiException

from engine_server.contract.api import Key
from engine_server.contract.labels import LLMDEPLOYMENT_LABEL
from llm_operator import metrics
from llm_operator.claims import Claims, claim_of
from llm_operator.cluster import FAILURES, Cluster, described_failure
from llm_operator.observed import Manifest, Observed
from llm_operator.plan import Plan, plan
from llm_operator.reasons import Problem
from llm_operator.settings import Settings
from llm_operator.spec import SpecError, parse
from llm_operator.status import Condition, Status, status
from llm_operator.workqueue import WorkQueue

WORKERS = 8
RELIST_SECONDS = 300
RETRY_SECONDS = 2
VOLATILE = {"resourceVersion", "managedFields"}  # changes with the status too

logger = logging.getLogger(__name__)


class RefusedError(Exception):
    """The spec could not be carried out; the status says why, and it is worth another try."""


@dataclass(slots=True)
class Reconciler:
    cluster: Cluster
    settings: Settings
    queue: WorkQueue = field(default_factory=WorkQueue)
    claims: Claims = field(default_factory=Claims)
    conditions: dict[Key, metrics.Conditions] = field(default_factory=dict)
    settled: dict[Key, dict[str, int]] = field(default_factory=dict)  # by kind

    # --- what wakes it

    def wake(self, *keys: Key) -> None:
        for key in keys:
            self.queue.add(key)

    def saw(self, manifest: Manifest) -> None:
        """An LLMDeployment as it is now."""
        key = Key.of(manifest)
        self.wake(key, *self.claims.put(key, claim_of(manifest)))

    def saw_gone(self, key: Key) -> None:
        self.wake(*self.claims.put(key, None))
        metrics.recount(self.conditions.pop(key, ()), ())
        self.settled.pop(key, None)

    async def relist(self) -> bool:
        """Repairs what a missed event left behind; False where the API server does not answer."""
        try:
            listed = await self.cluster.llmdeployments(self.settings.namespaces)
        except FAILURES as error:
            logger.warning("could not list LLMDeployments: %s", described_failure(error))
            return False
        for key in self.claims.by_key.keys() - {Key.of(manifest) for manifest in listed}:
            self.saw_gone(key)
        for manifest in listed:
            self.saw(manifest)
        return True

    # --- what it does

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
                    await self.reconcile(key)
            except Exception as error:
                metrics.RECONCILES.labels("error").inc()
                delay = self.queue.retry(key)
                unexpected = None if isinstance(error, (RefusedError, *FAILURES)) else error
                said = described_failure(error)
                logger.warning("%s: %s; again in %.1f s", key, said, delay, exc_info=unexpected)
            else:
                metrics.RECONCILES.labels("success").inc()
                self.queue.done(key)

    async def reconcile(self, key: Key) -> None:
        manifest = await self.cluster.llmdeployment(key)
        if manifest is None:
            self.saw_gone(key)
            return
        if "deletionTimestamp" in manifest["metadata"]:
            return
        observed = await self.observe(key, manifest)
        try:
            deployment = parse(manifest)
            goal = plan(deployment, observed, self.settings)
        except SpecError as error:
            # What ran before goes on, and there is nothing to try again before the spec changes.
            wanted = observed.workload.get("spec", {}).get("replicas", 0)
            observed = replace(observed, refusal=Problem("InvalidSpec", str(error)))
            generation = manifest["metadata"]["generation"]
            await self.report(key, manifest, status(key.name, generation, wanted, observed))
            return
        observed = await self.apply(key, goal, observed)
        await self.report(key, manifest, plan(deployment, observed, self.settings).status)
        if observed.refusal is not None:
            raise RefusedError(observed.refusal.message)

    async def observe(self, key: Key, manifest: Manifest) -> Observed:
        children, pods = await asyncio.gather(self.cluster.children(key), self.cluster.pods(key))
        return Observed(
            children=children,
            pods=tuple(pods),
            conditions=tuple(manifest.get("status", {}).get("conditions", ())),
            name_holders=self.claims.held_by_others(key),
            address=str(key),
            now=datetime.now(UTC),
        )

    async def apply(self, key: Key, goal: Plan, observed: Observed) -> Observed:
        """What there is afterwards, and what stood in the way."""
        applied = dict(observed.children)
        settled = self.settled.setdefault(key, {})
        refusal = None
        for child in goal.children:
            kind = child["kind"]
            if kind in applied and not is_ours(applied[kind], child):
                taken = f"a {kind} named {child['metadata']['name']} is there already and is not ours"
                refusal = Problem("ChildExists", taken)
                break
            if kind in applied and settled.get(kind) == fingerprint(child, applied[kind]):
                continue
            try:
                applied[kind] = await self.cluster.apply(child)
            except ApiException as error:
                if not is_refusal(error):
                    raise
                refusal = Problem("Refused", described_failure(error))
                break
            settled[kind] = fingerprint(child, applied[kind])
        return replace(observed, children=applied, refusal=refusal)

    async def report(self, key: Key, manifest: Manifest, result: Status) -> None:
        """Writes the status where it changed, and only there: a write wakes us again."""
        conditions = [(entry.type, entry.status) for entry in result.conditions]
        metrics.recount(self.conditions.get(key, ()), conditions)
        self.conditions[key] = conditions
        last_result = manifest.get("status", {})
        if result.as_manifest() == last_result:
            return
        await self.cluster.report(key, result.as_manifest())
        before = {entry["type"]: entry for entry in last_result.get("conditions", ())}
        for condition in result.conditions:
            last = before.get(condition.type, {})
            if is_news(condition, last):
                kind = "Warning" if condition.is_bad else "Normal"
                await self.cluster.post_event(manifest, kind, condition.reason, condition.message)


def fingerprint(planned: Manifest, child: Manifest) -> int:
    """Of a plan and what came of it: while it is the same there is nothing to apply."""
    metadata = {key: child["metadata"][key] for key in child["metadata"].keys() - VOLATILE}
    return hash(json.dumps([planned, {**child, "metadata": metadata, "status": None}], sort_keys=True))


def is_ours(child: Manifest, planned: Manifest) -> bool:
    """Whether a child has our LLMDeployment as its controller, or is an orphan with our label."""
    (owner,) = planned["metadata"]["ownerReferences"]
    owners = child["metadata"].get("ownerReferences", [])
    if any(reference["uid"] == owner["uid"] for reference in owners):
        return True
    labels = child["metadata"].get("labels", {})
    orphan = not any(reference.get("controller") for reference in owners)
    return orphan and labels.get(LLMDEPLOYMENT_LABEL) == owner["name"]


def is_refusal(error: ApiException) -> bool:
    """Whether the API server read it and said no; fields of a wrong type or name are a 500 to it."""
    return error.status in (400, 403, 422) or "failed to create typed patch" in described_failure(error)


def is_news(condition: Condition, last: Manifest) -> bool:
    """Whether people should hear of it: Ready as it turns, and each new reason why something is wrong."""
    if condition.type == "Ready":
        return condition.status != str(last.get("status", "False"))
    return condition.is_bad and (last.get("status"), last.get("reason")) != ("True", condition.reason)
