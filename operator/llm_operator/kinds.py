"""The kinds of objects that the operator handles: their places in the API, its rights to them, what it keeps of them.

The watches, the rules of the operator's role and the kinds of its admission policy follow from the table.
"""

from collections.abc import Mapping
from typing import NamedTuple

from engine_server.contract.cluster import api
from llm_operator.observed import ChildKey


class Resource(NamedTuple):
    """The place of a kind's objects in the API."""

    group: str
    version: str
    plural: str

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "") -> str:
        """Return the path of an object; without a name of a namespace's collection, else of the whole cluster's."""
        root = f"/apis/{self.group}" if self.group else "/api"
        scope = f"/namespaces/{namespace}" if namespace else ""
        return f"{root}/{self.version}{scope}/{self.plural}" + (f"/{name}" if name else "")


class Kind(NamedTuple):
    """One row: what the operator does with the objects of a kind."""

    resource: Resource
    # As manifests have it.
    name: str
    # Of RBAC. What may be watched is, and is labelled; what may be deleted is a child, of which plans are made.
    verbs: tuple[str, ...]
    # The verbs for each subresource.
    subresources: Mapping[str, tuple[str, ...]] = {}
    # The fields of its spec that are kept in memory; None: all.
    kept: tuple[str, ...] | None = None


LLMDEPLOYMENTS = Resource(api.GROUP, api.VERSION, api.PLURAL)
PODS = Resource("", "v1", "pods")
DEPLOYMENTS = Resource("apps", "v1", "deployments")
REPLICA_SETS = Resource("apps", "v1", "replicasets")
EVENTS = Resource("", "v1", "events")
SECRETS = Resource("", "v1", "secrets")

CHILD = ("get", "list", "watch", "create", "patch", "delete")
# Without `finalizers`, admission refuses owner references with blockOwnerDeletion on OpenShift.
OWN = {"status": ("patch",), "scale": ("patch",), "finalizers": ("update",)}

KINDS = (
    Kind(LLMDEPLOYMENTS, api.KIND, ("get", "list", "watch"), OWN),
    Kind(Resource("", "v1", "serviceaccounts"), "ServiceAccount", CHILD),
    Kind(Resource("", "v1", "configmaps"), "ConfigMap", CHILD),
    Kind(Resource("", "v1", "persistentvolumeclaims"), "PersistentVolumeClaim", CHILD),
    Kind(Resource("batch", "v1", "jobs"), "Job", CHILD),
    Kind(Resource("", "v1", "services"), "Service", CHILD),
    Kind(Resource("policy", "v1", "poddisruptionbudgets"), "PodDisruptionBudget", CHILD),
    Kind(DEPLOYMENTS, "Deployment", CHILD),
    Kind(Resource("networking.k8s.io", "v1", "networkpolicies"), "NetworkPolicy", CHILD),
    Kind(REPLICA_SETS, "ReplicaSet", ("list", "watch"), kept=("replicas", "template.spec.volumes")),
    Kind(PODS, "Pod", ("list", "watch", "patch"), kept=("nodeName", "priority")),
    Kind(EVENTS, "Event", ("list", "create", "patch")),
)

# The kinds of children, by apiVersion and kind.
CHILDREN = {(kind.resource.api_version, kind.name): kind.resource for kind in KINDS if "delete" in kind.verbs}
CHILD_KINDS = {resource: kind for kind, resource in CHILDREN.items()}
# The kinds that are listed and watched.
WATCHED = tuple(kind.resource for kind in KINDS if "watch" in kind.verbs)
# Those whose objects carry the label of the LLMDeployment that they belong to.
OWNED = tuple(resource for resource in WATCHED if resource != LLMDEPLOYMENTS)


def child_path(namespace: str, key: ChildKey, name: str | None = None) -> str:
    return CHILDREN[key.api_version, key.kind].path(namespace, key.name if name is None else name)
