"""The state of the cluster that plan and status depend on."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple, Self

import msgspec

from engine_server.contract.cluster import labels
from engine_server.contract.cluster.adapters import AdapterState, WantedAdapters
from engine_server.contract.cluster.api import Key
from engine_server.contract.cluster.model_folder import reports_no_model
from llm_operator.api.status import Scaling

# A Kubernetes object as the API server sends and takes it.
Manifest = dict[str, Any]
# Given to each ReplicaSet by the Deployment's controller, in rising order.
REVISION_ANNOTATION = "deployment.kubernetes.io/revision"
# Given to a claim by the scheduler: the node of the pod for which its volume is created.
SELECTED_NODE_ANNOTATION = "volume.kubernetes.io/selected-node"
# The entry of a ConfigMap with adapters, in the form of `WantedAdapters`.
ADAPTERS_ENTRY = "adapters.json"
EPOCH = datetime.fromtimestamp(0, UTC)


def timestamp(moment: datetime) -> str:
    """Return a time in UTC as Kubernetes writes it, in whole seconds."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


class ChildKey(NamedTuple):
    """The identity of a child within the namespace of its LLMDeployment."""

    api_version: str
    kind: str
    name: str

    @classmethod
    def of(cls, child: Manifest) -> Self:
        return cls(child["apiVersion"], child["kind"], child["metadata"]["name"])


class Problem(NamedTuple):
    """A reason in one word, and a message for people."""

    reason: str
    message: str


class Warned(NamedTuple):
    """The content of an Event of type Warning. Whoever may write Events may have written it."""

    reason: str
    message: str


class KeyHashes(NamedTuple):
    """Lines of an engine's key files: hashes of the keys that the router and the operator may use."""

    router: tuple[str, ...] = ()
    admin: tuple[str, ...] = ()


class Replica(NamedTuple):
    """One start of one engine."""

    pod: str
    # The time at which the engine's container started, as the pod's status has it.
    started_at: str
    address: str


class StartReport(NamedTuple):
    """The answer of an engine to the question whether it is ready."""

    replica: Replica
    # The current phase of the start: import, load or warm up; empty once the engine serves.
    phase: str
    # The share of the weights that is loaded.
    percent: int
    # The duration of each phase that has ended.
    seconds: Mapping[str, float]
    # The engine serves: its report does not change any more.
    is_final: bool


class PodAdapters(NamedTuple):
    """The last answer of a pod about its adapters."""

    replica: Replica
    # Of the wanted adapters; the URI is empty if it is another one than the wanted.
    states: tuple[AdapterState, ...] = ()
    # Why it did not answer; empty if it did.
    problem: str = ""
    # It serves adapters that are not wanted.
    serves_others: bool = False


def workload_key(name: str) -> ChildKey:
    """Return the key of the Deployment that runs the engines of the LLMDeployment `name`."""
    return ChildKey("apps/v1", "Deployment", labels.child_name(name))


def adapters_key(name: str) -> ChildKey:
    """Return the key of the ConfigMap with the adapters of the LLMDeployment `name`."""
    return ChildKey("v1", "ConfigMap", f"{name}-adapters")


def volumes_of(pod: Manifest, config_map: ChildKey) -> set[str]:
    """Return the names of a pod's volumes that are this ConfigMap."""
    volumes = pod.get("volumes") or ()
    return {each["name"] for each in volumes if (each.get("configMap") or {}).get("name") == config_map.name}


def claim_key(name: str) -> ChildKey:
    return ChildKey("v1", "PersistentVolumeClaim", name)


def fetch_key(cache: str) -> ChildKey:
    """Return the key of the Job that downloads a model into the cache of this name."""
    return ChildKey("batch/v1", "Job", cache)


@dataclass(frozen=True, slots=True)
class Fetch:
    """The download of a model into its cache, at one moment."""

    pods: tuple[Manifest, ...] = ()
    # Bytes on the volume, and in total; 0 if they are not known.
    done: int = 0
    total: int = 0
    # The Warnings about the pods, and about a claim without a volume, in the order of their time.
    warnings: tuple[Warned, ...] = ()


def found_no_model(pod: Manifest, since: str = "") -> bool:
    """Return True if a pod's engine that started after a time found no model, and is not ready since then.

    since: as Kubernetes writes it; empty for any time.
    """
    entries = pod.get("status", {}).get("containerStatuses", ())
    states = [
        entry.get(state, {})
        for entry in entries
        if entry["name"] == labels.ENGINE_CONTAINER and not entry.get("ready")
        for state in ("state", "lastState")
    ]
    ends = [state["terminated"] for state in states if "terminated" in state]
    return any(
        (end.get("startedAt") or "") > since and reports_no_model(end.get("message", "")) for end in ends
    )


def annotation(child: Manifest, name: str) -> str:
    """Return an annotation of an object that may not exist; empty if it has none."""
    return str(child.get("metadata", {}).get("annotations", {}).get(name, ""))


def owners_of(existing: Manifest) -> set[str]:
    """Return the UIDs of an object's owners."""
    return {reference["uid"] for reference in existing["metadata"].get("ownerReferences", ())}


def revision(replica_set: Manifest) -> int:
    """Return the revision of a ReplicaSet, 0 if it has none."""
    number = replica_set["metadata"].get("annotations", {}).get(REVISION_ANNOTATION, "")
    return int(number) if number.isdecimal() else 0


def has_replicas(replica_set: Manifest) -> bool:
    return bool(replica_set.get("spec", {}).get("replicas") or replica_set.get("status", {}).get("replicas"))


@dataclass(frozen=True, slots=True)
class Observed:
    """One LLMDeployment and its surroundings at one moment; empty without a cluster."""

    # The LLMDeployment itself, valid or not.
    subject: Manifest = field(default_factory=dict)
    children: Mapping[ChildKey, Manifest] = field(default_factory=dict)
    pods: tuple[Manifest, ...] = ()
    # Claims of the user's, by name, as far as they were read; empty for one that does not exist.
    claims: Mapping[str, Manifest] = field(default_factory=dict)
    # The ReplicaSets of the Deployment, in any order; of their templates only the volumes are known.
    replica_sets: tuple[Manifest, ...] = ()
    # Served names that mean another LLMDeployment, each with that one's namespace and name.
    name_holders: tuple[tuple[str, str], ...] = ()
    # The download of the model, None while there is none.
    fetch: Fetch | None = None
    # The last answer of the replica that starts, or that started last.
    start_report: StartReport | None = None
    # The last answers about adapters, by pod.
    pod_adapters: Mapping[str, PodAdapters] = field(default_factory=dict)
    # The commits of the hub that ready replicas report, by pod; empty for one that reports none.
    commits: Mapping[str, str] = field(default_factory=dict)
    # The last Warnings about pods whose containers are not created, by the pod's UID.
    warnings: Mapping[str, tuple[Warned, ...]] = field(default_factory=dict)
    # None where nobody scales by `autoscaling`.
    scaling: Scaling | None = None
    # The image pull secrets of the namespace's account `default`.
    default_pull_secrets: tuple[str, ...] = ()
    # The reason why the plan was not carried out, if it was not.
    refusal: Problem | None = None
    # Empty where engines need no keys.
    key_hashes: KeyHashes = field(default_factory=KeyHashes)
    now: datetime = EPOCH

    @property
    def key(self) -> Key:
        return Key.of(self.subject)

    @property
    def generation(self) -> int:
        return int(self.subject["metadata"].get("generation", 0))

    @property
    def is_paused(self) -> bool:
        """True if the user has stopped the operator's work on this LLMDeployment."""
        annotations = self.subject.get("metadata", {}).get("annotations") or {}
        return str(annotations.get(labels.PAUSED_ANNOTATION, "false")).lower() != "false"

    @property
    def reported(self) -> Manifest:
        """The status that was reported last."""
        status: Manifest = self.subject.get("status", {})
        return status

    @property
    def adapters_in_force(self) -> WantedAdapters | None:
        """The adapters that the engines should serve, as they were applied last; None if engines serve none.

        The list outlives its adapters while former replicas mount it.
        """
        if not self._mounts(adapters_key(self.key.name)):
            return None
        content = self.children.get(adapters_key(self.key.name), {}).get("data", {}).get(ADAPTERS_ENTRY)
        try:
            return None if content is None else msgspec.json.decode(content, type=WantedAdapters)
        except msgspec.MsgspecError:
            # Changed by hand; the operator reverts that unless it is paused.
            return None

    def _mounts(self, config_map: ChildKey) -> bool:
        """Return True if the Deployment's template has a volume of a ConfigMap, or there is no Deployment yet."""
        template = self.workload(self.key.name).get("spec", {}).get("template")
        return template is None or bool(volumes_of(template.get("spec", {}), config_map))

    def workload(self, name: str) -> Manifest:
        """Return the Deployment with the engines, empty if there is none."""
        return self.children.get(workload_key(name), {})

    def cached_model(self, child: ChildKey) -> str:
        """Return the record of a complete model on a Deployment or on a claim, empty without one."""
        annotations = self.children.get(child, {}).get("metadata", {}).get("annotations", {})
        return str(annotations.get(labels.CACHED_MODEL_ANNOTATION, ""))

    def claim_uid(self, name: str) -> str:
        return str(self.children.get(claim_key(name), {}).get("metadata", {}).get("uid", ""))

    def claim(self, name: str) -> Manifest:
        """Return a claim, of whoever made it; empty if there is none or it was not read."""
        return self.children.get(claim_key(name)) or self.claims.get(name, {})
