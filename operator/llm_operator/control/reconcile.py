"""The control loop: observe, decide, carry out, assess, report. It is level-triggered: events only wake it."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from kubernetes.aio.client import ApiException

from engine_server.contract.cluster.api import Key
from engine_server.contract.cluster.reasons import Reason
from llm_operator import metrics
from llm_operator.api.status import Scaling
from llm_operator.control.adapter_pusher import AdapterPusher, Goal
from llm_operator.control.api_errors import FAILURES, describe, is_rejection, is_transient, outage_seconds
from llm_operator.control.cluster import Cluster
from llm_operator.control.commit_poller import CommitPoller
from llm_operator.control.custody import Custody
from llm_operator.control.default_accounts import DefaultAccounts
from llm_operator.control.deletion_costs import DeletionCosts
from llm_operator.control.events import Events
from llm_operator.control.fetch import addresses, observe_fetch, stop_if_unusable
from llm_operator.control.fetch_poller import FetchPoller
from llm_operator.control.outdated_templates import OutdatedTemplates
from llm_operator.control.pace import Pace
from llm_operator.control.pod_questions import PodQuestions
from llm_operator.control.queue import LONGEST_DELAY_SECONDS, WorkQueue
from llm_operator.control.record import Record, lacks_owner_alone, marked
from llm_operator.control.root_keys import RootKeys
from llm_operator.control.scaling_reports import ScalingReports, reported_scaling
from llm_operator.control.start_poller import StartPoller
from llm_operator.control.status_writer import StatusWriter
from llm_operator.control.turns import Priority
from llm_operator.control.warning_poller import WarningPoller
from llm_operator.control.watching.store import Ref, Store, child_key, version_of
from llm_operator.control.watching.trim import trimmed
from llm_operator.kinds import (
    CHILD_KINDS,
    CHILDREN,
    LLMDEPLOYMENTS,
    PODS,
    REPLICA_SETS,
    Resource,
)
from llm_operator.observed import (
    ChildKey,
    KeyHashes,
    Manifest,
    Observed,
    Problem,
    claim_key,
    owners_of,
    workload_key,
)
from llm_operator.plan.decide import Decision, decide
from llm_operator.plan.deletion_cost import is_scale_down
from llm_operator.plan.ownership import field_manager, owned_by, owned_pods
from llm_operator.plan.plan import Plan
from llm_operator.plan.pod.adapters import of_other_models
from llm_operator.settings import Settings
from llm_operator.status.adapters import ready_replicas
from llm_operator.status.assess import assess
from llm_operator.status.commits import replicas_to_ask
from llm_operator.status.creation import uncreated
from llm_operator.status.messages import presentable
from llm_operator.status.start import replica_to_ask
from llm_operator.status.volumes import claims_in_question
from llm_operator.status.waking import give_up_after

WORKERS = 8
# The longest delay of a retry where the API server has failed: work resumes within seconds after it recovers.
LONGEST_FAILURE_SECONDS = 4.0

logger = logging.getLogger(__name__)


class RefusedError(Exception):
    """The plan could not be carried out, and is retried. The status reports why, unless the object is gone."""


@dataclass(slots=True)
class Reconciler:
    """Brings the cluster to the state that LLMDeployments ask for, one at a time in each worker.

    It reads the store alone, and puts the answers to its writes there, so that the next reconcile knows of them.
    """

    cluster: Cluster
    settings: Settings
    # None where the operator can't call the admin API of engines.
    root_keys: RootKeys | None = None
    # None where no routers are known.
    deletion_costs: DeletionCosts | None = None
    scaling_reports: ScalingReports | None = None
    store: Store = field(default_factory=Store)
    queue: WorkQueue = field(default_factory=WorkQueue)
    records: defaultdict[Key, Record] = field(default_factory=lambda: defaultdict(Record))
    custody: Custody = field(init=False)
    status_writer: StatusWriter = field(init=False)
    fetch_poller: FetchPoller = field(init=False)
    start_poller: StartPoller = field(init=False)
    commit_poller: CommitPoller = field(init=False)
    warning_poller: WarningPoller = field(init=False)
    adapter_pusher: AdapterPusher = field(init=False)
    default_accounts: DefaultAccounts = field(init=False)
    outdated_templates: OutdatedTemplates = field(init=False)

    def __post_init__(self) -> None:
        self.custody = Custody(self.cluster, self.store, self.settings.operator, self.settings.take_over)
        questions = PodQuestions()
        self.fetch_poller = FetchPoller(questions)
        self.start_poller = StartPoller(self.queue.add, questions)
        self.commit_poller = CommitPoller(self.queue.add, questions)
        self.warning_poller = WarningPoller(self.queue.add, self.cluster)
        self.adapter_pusher = AdapterPusher(self.queue.add, questions)
        self.default_accounts = DefaultAccounts(self.cluster)
        self.outdated_templates = OutdatedTemplates(self.settings)
        self.status_writer = StatusWriter(self.cluster, self.store, Events(self.cluster), self.wake_edited)

    def wake_edited(self, key: Key) -> None:
        self.queue.add(key, Priority.EDIT)

    def wake_all(self) -> None:
        for key in self.store.claims.by_key:
            self.queue.add(key)

    async def run(self) -> None:
        """Reconcile what is queued until cancelled."""
        metrics.QUEUED.set_function(lambda: len(self.queue.due))
        if self.root_keys is not None:
            await self.root_keys.load()
        pace = Pace(WORKERS)
        async with asyncio.TaskGroup() as group:
            for _ in range(WORKERS):
                group.create_task(self.work(pace))
            group.create_task(self.adapter_pusher.run())
            if self.root_keys is not None:
                group.create_task(self.root_keys.follow(self.wake_all))

    async def work(self, pace: Pace) -> None:
        while True:
            await pace.begin()
            key = await self.queue.take()
            outage, answers = None, self.cluster.answers
            try:
                with metrics.RECONCILE_SECONDS.time():
                    again_after = await self.reconcile(key)
            except asyncio.CancelledError:
                self.queue.add(key)
                self.queue.done(key)
                raise
            except Exception as error:
                metrics.RECONCILES.labels("error").inc()
                outage = outage_seconds(error)
                delay = self.retry(key, error) if outage is None else self.queue.postpone(key, outage)
                unexpected = None if isinstance(error, (RefusedError, *FAILURES)) else error
                logger.warning("%s: %s; retry in %.1f s", key, describe(error), delay, exc_info=unexpected)
                # An API server in trouble is not asked about every object.
                await asyncio.sleep(outage or 0)
            else:
                metrics.RECONCILES.labels("success").inc()
                self.queue.done(key, again_after)
            pace.end(outage is not None, self.cluster.answers > answers)

    def retry(self, key: Key, error: Exception) -> float:
        """Queue a key whose reconcile failed; return the delay in seconds."""
        return self.queue.retry(
            key, LONGEST_FAILURE_SECONDS if is_transient(error) else LONGEST_DELAY_SECONDS
        )

    async def reconcile(self, key: Key) -> float | None:
        """Carry out one LLMDeployment. Return the seconds after which to do so again without an event, if ever."""
        manifest, unread = await self.read(key)
        if manifest is None:
            self.forget(key)
            return None
        if "deletionTimestamp" in manifest["metadata"] or not await self.custody.take(key, manifest):
            self.let_go(key)
            return None
        manifest = self.store.llmdeployment(key) or manifest
        observed, decision = await self.decide(key, manifest, unread)
        await self.before_scale_down(key, decision.plan, observed)
        observed, failure = await self.carry_out(key, decision, observed)
        if cache := decision.plan.fetches:
            progress = self.fetch_poller.progress.get(key)
            fetch = await observe_fetch(self.cluster, key.namespace, cache, progress)
            await stop_if_unusable(self.cluster, key.namespace, cache, fetch)
            observed = replace(observed, fetch=fetch)
        self.fetch_poller.follow(key, addresses(observed.fetch) if observed.fetch else ())
        self.push_adapters(key, observed)
        status = assess(decision.spec, observed)
        replicas = observed.subject["spec"].get("replicas", 1)
        metrics.STATUS.put(key, replicas, status, self.outdated_templates.has(observed))
        self.start_poller.follow(key, replica_to_ask(observed))
        self.commit_poller.follow(key, replicas_to_ask(decision.spec, observed))
        self.warning_poller.follow(key, uncreated(observed.pods))
        write_after = await self.status_writer.write(key, observed, status)
        if failure is not None:
            raise failure
        # A refusal is reported before it is retried.
        if observed.refusal is not None and decision.may_succeed_later and write_after is None:
            raise RefusedError(presentable(observed.refusal.message))
        waits = (decision.plan.requeue_after, write_after, give_up_after(decision.spec, status, observed))
        return min((after for after in waits if after is not None), default=None)

    def push_adapters(self, key: Key, observed: Observed) -> None:
        """Bring the adapters in force to the replicas that are ready."""
        wanted = observed.adapters_in_force
        admin_key = self.root_keys.admin_key(observed.subject["metadata"]["uid"]) if self.root_keys else ""
        goal = Goal(wanted, admin_key) if wanted is not None and admin_key else None
        replicas = ready_replicas(observed)
        others = of_other_models(wanted, observed) if wanted is not None else set()
        self.adapter_pusher.follow(
            key,
            goal,
            [replica for replica in replicas if replica.pod not in others],
            [replica for replica in replicas if replica.pod in others],
        )

    def forget(self, key: Key) -> None:
        """Forget an LLMDeployment that was deleted."""
        self.let_go(key)
        self.records.pop(key, None)
        self.custody.forget(key)
        self.status_writer.forget(key)
        self.outdated_templates.forget(key)

    def let_go(self, key: Key) -> None:
        """Ask replicas nothing, and show no series: the LLMDeployment is another operator's, or being deleted."""
        self.fetch_poller.follow(key, ())
        self.start_poller.forget(key)
        self.commit_poller.follow(key, ())
        self.warning_poller.follow(key, ())
        self.adapter_pusher.forget(key)
        metrics.STATUS.remove(key)

    async def read(self, key: Key) -> tuple[Manifest | None, dict[Ref, Manifest]]:
        """Return an LLMDeployment, None if there is none, and those of its objects that the store has no room for."""
        refs = self.store.unread(key)
        found = await asyncio.gather(*(self.cluster.find(ref.path) for ref in refs))
        unread = {
            ref: trimmed(ref.resource, each)
            for ref, each in zip(refs, found, strict=True)
            if each is not None
        }
        return self.store.llmdeployment(key) or unread.get(Ref(LLMDEPLOYMENTS, *key)), unread

    async def decide(
        self, key: Key, manifest: Manifest, unread: Mapping[Ref, Manifest]
    ) -> tuple[Observed, Decision]:
        """Observe and decide, again once planned children and claims in question that are not watched were looked up.

        A foreign object may have such a child's name; only objects with our label are watched.
        """
        default_pull_secrets = await self.default_accounts.pull_secrets(key.namespace)
        looked_up: dict[ChildKey, Manifest | None] = {}
        claims: dict[str, Manifest] = {}
        while True:
            observed = replace(
                self.observe(key, manifest, looked_up, unread),
                default_pull_secrets=default_pull_secrets,
                claims=claims,
            )
            decision = decide(observed, self.settings)
            unknown = sorted(decision.plan.apply.keys() - observed.children.keys() - looked_up.keys())
            unread_claims = sorted((decision.plan.claims | claims_in_question(observed)) - claims.keys())
            if not (unknown or unread_claims):
                return observed, decision
            looked_up |= await self.cluster.look_up(key.namespace, unknown)
            found = await self.cluster.look_up(key.namespace, map(claim_key, unread_claims))
            claims = claims | {child.name: claim or {} for child, claim in found.items()}

    def observe(
        self,
        key: Key,
        manifest: Manifest,
        looked_up: Mapping[ChildKey, Manifest | None],
        unread: Mapping[Ref, Manifest],
    ) -> Observed:
        found = {child: existing for child, existing in looked_up.items() if existing is not None}
        read = {child_key(ref): each for ref, each in unread.items() if ref.resource in CHILD_KINDS}
        children = found | read | self.store.children(key)
        workload = children.get(workload_key(key.name), {})
        replica_sets = owned_by(workload, self.all_of(REPLICA_SETS, key, unread))
        return Observed(
            subject=manifest,
            children=children,
            pods=owned_pods(self.all_of(PODS, key, unread), replica_sets),
            replica_sets=replica_sets,
            start_report=self.start_poller.reports.get(key),
            pod_adapters=self.adapter_pusher.answers(key),
            commits=self.commit_poller.commits.get(key, {}),
            scaling=self.scaling(key, manifest),
            warnings=dict(self.warning_poller.warnings.get(key, {})),
            name_holders=self.store.claims.held_by_others(key),
            key_hashes=self.root_keys.hashes(manifest["metadata"]["uid"]) if self.root_keys else KeyHashes(),
            now=datetime.now(UTC),
        )

    def scaling(self, key: Key, manifest: Manifest) -> Scaling | None:
        """Return the autoscaler's decision; before its first one that of the last operator."""
        if self.scaling_reports is None or key not in self.store.scales.by_key:
            return None
        return self.scaling_reports.get(key) or reported_scaling(manifest)

    def all_of(self, resource: Resource, key: Key, unread: Mapping[Ref, Manifest]) -> tuple[Manifest, ...]:
        read = (each for ref, each in unread.items() if ref.resource == resource)
        return (*self.store.objects(resource, key), *read)

    async def before_scale_down(self, key: Key, goal: Plan, observed: Observed) -> None:
        """Write the deletion costs of pods, if the plan removes some of them but not all."""
        if self.deletion_costs is not None and is_scale_down(goal, observed):
            await self.deletion_costs.write(key, observed.pods)

    async def carry_out(
        self, key: Key, decision: Decision, observed: Observed
    ) -> tuple[Observed, ApiException | None]:
        """Apply and prune. Return `observed` with the children that exist afterwards, and with a refusal, if any.

        Return also the failure of a call to an API server that answers others, such as that of a webhook: meanwhile
        replicas come and go, and are reported, as is the failure itself.
        """
        record, uid = self.records[key], observed.subject["metadata"]["uid"]
        refusal, failure = decision.refusal, None
        try:
            for child, planned in decision.plan.apply.items():
                existing = observed.children.get(child)
                if record.is_settled(child, planned, existing):
                    continue
                if existing is not None and uid not in owners_of(existing):
                    await self.check_owner(key, observed.subject)
                await self.apply(key, child, planned, existing)
            for child in decision.plan.delete:
                child_uid = observed.children[child]["metadata"]["uid"]
                await self.cluster.delete(key.namespace, child, uid=child_uid)
                logger.info("%s: deleted %s %s, which is not planned any more", key, child.kind, child.name)
            for child in decision.plan.release:
                manager = field_manager(observed.children[child], key.name)
                await self.cluster.release(key.namespace, child, uid, manager)
                logger.info("%s: released %s %s, which is not planned any more", key, child.kind, child.name)
        except ApiException as error:
            # After a conflict, what was observed is out of date.
            if outage_seconds(error) is not None or error.status == 409:
                raise
            if is_rejection(error):
                refusal = Problem(Reason.REFUSED, describe(error))
            else:
                refusal, failure = Problem(Reason.ROLLING_OUT, describe(error)), error
        children = dict(observed.children) | self.store.children(key)
        if failure is None:
            for child in (*decision.plan.delete, *decision.plan.release):
                children.pop(child, None)
        return replace(observed, children=children, refusal=refusal), failure

    async def check_owner(self, key: Key, owner: Manifest) -> None:
        """Raise RefusedError unless an owner still exists, undeleted: what it adopts is deleted with it.

        So do Kubernetes' controllers. With `kubectl delete --cascade=orphan` children are to outlive their owner.
        """
        current = await self.cluster.find(LLMDEPLOYMENTS.path(*key))
        metadata = current["metadata"] if current else {}
        if metadata.get("uid") != owner["metadata"]["uid"] or "deletionTimestamp" in metadata:
            raise RefusedError("it is being deleted or was replaced, and adopts nothing")

    async def apply(self, key: Key, child: ChildKey, planned: Manifest, existing: Manifest | None) -> None:
        """Apply one child, and wake the others that share it."""
        resource = CHILDREN[child.api_version, child.kind]
        manager = field_manager(planned, key.name)
        version = self.store.version(Ref(resource, key.namespace, child.name))
        if existing is not None and lacks_owner_alone(planned, existing):
            (owner,) = planned["metadata"]["ownerReferences"]
            uid = existing["metadata"]["uid"]
            applied = await self.cluster.share(key.namespace, child, uid, owner, manager)
        else:
            applied = await self.cluster.apply(key.namespace, child, marked(planned), manager)
        if version_of(applied) != version:
            logger.info("%s: %s %s %s", key, "changed" if existing else "created", child.kind, child.name)
        self.records[key].settle(child, planned, trimmed(resource, applied))
        for other in self.store.put(resource, applied) - {key}:
            self.queue.add(other)
