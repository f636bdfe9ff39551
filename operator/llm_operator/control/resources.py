"""The kinds of objects that the operator handles, and their places in the Kubernetes API."""

from typing import NamedTuple

from engine_server.contract.cluster import api
from llm_operator.observed import ChildKey


class Resource(NamedTuple):
    """The place of a kind's objects in the API."""

    group: str
    version: str
    plural: str

    def path(self, namespace: str = "", name: str = "") -> str:
        """Return the path of an object; without a name of a namespace's collection, else of the whole cluster's."""
        root = f"/apis/{self.group}" if self.group else "/api"
        scope = f"/namespaces/{namespace}" if namespace else ""
        return f"{root}/{self.version}{scope}/{self.plural}" + (f"/{name}" if name else "")


LLMDEPLOYMENTS = Resource(api.GROUP, api.VERSION, api.PLURAL)
PODS = Resource("", "v1", "pods")
DEPLOYMENTS = Resource("apps", "v1", "deployments")
REPLICA_SETS = Resource("apps", "v1", "replicasets")
EVENTS = Resource("", "v1", "events")
SECRETS = Resource("", "v1", "secrets")
# The kinds of children, by apiVersion and kind.
CHILDREN = {
    ("v1", "ServiceAccount"): Resource("", "v1", "serviceaccounts"),
    ("v1", "ConfigMap"): Resource("", "v1", "configmaps"),
    ("v1", "PersistentVolumeClaim"): Resource("", "v1", "persistentvolumeclaims"),
    ("batch/v1", "Job"): Resource("batch", "v1", "jobs"),
    ("v1", "Service"): Resource("", "v1", "services"),
    ("policy/v1", "PodDisruptionBudget"): Resource("policy", "v1", "poddisruptionbudgets"),
    ("apps/v1", "Deployment"): DEPLOYMENTS,
    ("networking.k8s.io/v1", "NetworkPolicy"): Resource("networking.k8s.io", "v1", "networkpolicies"),
}
CHILD_KINDS = {resource: kind for kind, resource in CHILDREN.items()}
# The kinds whose objects carry the label of the LLMDeployment that they belong to.
OWNED = (*CHILDREN.values(), REPLICA_SETS, PODS)
# The kinds that are listed and watched.
WATCHED = (LLMDEPLOYMENTS, *OWNED)


def child_path(namespace: str, key: ChildKey, name: str | None = None) -> str:
    return CHILDREN[key.api_version, key.kind].path(namespace, key.name if name is None else name)
