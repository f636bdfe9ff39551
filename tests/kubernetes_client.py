"""A client of the Kubernetes API in the test's own process, with connections that are kept alive."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import urllib3
import yaml
from llm_operator.kinds import Resource
from waiting import NotYetError

from engine_server.contract.base.nesting import decode_shallow

Manifest = dict[str, Any]

APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
# Kinds by apiVersion and kind, under the names that the tests have for them.
KINDS = {
    "clusterrole": ("rbac.authorization.k8s.io/v1", "ClusterRole"),
    "clusterrolebinding": ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"),
    "configmap": ("v1", "ConfigMap"),
    "crd": ("apiextensions.k8s.io/v1", "CustomResourceDefinition"),
    "deployment": ("apps/v1", "Deployment"),
    "endpointslice": ("discovery.k8s.io/v1", "EndpointSlice"),
    "event": ("v1", "Event"),
    "job": ("batch/v1", "Job"),
    "lease": ("coordination.k8s.io/v1", "Lease"),
    "llmd": ("fairlead.dev/v1alpha1", "LLMDeployment"),
    "networkpolicy": ("networking.k8s.io/v1", "NetworkPolicy"),
    "pdb": ("policy/v1", "PodDisruptionBudget"),
    "pod": ("v1", "Pod"),
    "pvc": ("v1", "PersistentVolumeClaim"),
    "replicaset": ("apps/v1", "ReplicaSet"),
    "role": ("rbac.authorization.k8s.io/v1", "Role"),
    "rolebinding": ("rbac.authorization.k8s.io/v1", "RoleBinding"),
    "secret": ("v1", "Secret"),
    "service": ("v1", "Service"),
    "serviceaccount": ("v1", "ServiceAccount"),
    "validatingadmissionpolicy": ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy"),
    "validatingadmissionpolicybinding": (
        "admissionregistration.k8s.io/v1",
        "ValidatingAdmissionPolicyBinding",
    ),
}
# Kinds whose objects are in no namespace.
CLUSTER_WIDE = {
    "ClusterRole",
    "ClusterRoleBinding",
    "CustomResourceDefinition",
    "Namespace",
    "SubjectAccessReview",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
}


class RefusedError(Exception):
    """An answer of the API server that is not a success."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message


def resource_of(api_version: str, kind: str) -> Resource:
    """Return the place of a kind's objects in the API."""
    group, _, version = api_version.rpartition("/")
    singular = kind.lower()
    if singular.endswith("cy"):
        return Resource(group, version, f"{singular[:-1]}ies")
    return Resource(group, version, singular + ("es" if singular.endswith("s") else "s"))


def message_of(answer: bytes) -> str:
    """Return the message of a refusal: of a Status, or the whole answer where the path is unknown."""
    try:
        return str(json.loads(answer)["message"])
    except ValueError:
        return answer.decode()


def collection_of(manifest: Manifest, namespace: str) -> str:
    """Return the path to which an object belongs; `namespace` is for one whose manifest names none."""
    kind = manifest["kind"]
    scope = "" if kind in CLUSTER_WIDE else manifest["metadata"].get("namespace", namespace)
    return resource_of(manifest["apiVersion"], kind).path(scope)


def path_of(manifest: Manifest, namespace: str) -> str:
    """Return the path of an object, likewise."""
    return f"{collection_of(manifest, namespace)}/{manifest['metadata']['name']}"


def reference_to(api_version: str, kind: str, owner: Manifest) -> Manifest:
    """Return the owner reference to a controller."""
    named = {key: owner["metadata"][key] for key in ("name", "uid")}
    return {"apiVersion": api_version, "kind": kind, **named, "controller": True}


class Client:
    """Calls with the rights of a kubeconfig, in one namespace by default. Threads may share it."""

    def __init__(self, kubeconfig: Path, namespace: str = "default") -> None:
        self.kubeconfig = kubeconfig
        self.namespace = namespace
        # Of the API server, about calls that it carried out.
        self.warnings: list[str] = []
        config = yaml.safe_load(kubeconfig.read_text())
        cluster = config["clusters"][0]["cluster"]
        self.url = cluster["server"]
        self._pool = urllib3.PoolManager(
            ca_certs=cluster["certificate-authority"],
            timeout=60,
            headers={"Authorization": f"Bearer {config['users'][0]['user']['token']}"},
        )

    def call(
        self,
        method: str,
        path: str,
        body: object = None,
        content_type: str = "application/json",
        **query: str,
    ) -> Manifest:
        """Return the object that the API server answers. Raises RefusedError. A body of bytes is sent as it is."""
        answer = self._pool.request(
            method,
            f"{self.url}{path}?{urlencode(query)}",
            body=body if body is None or isinstance(body, bytes) else json.dumps(body),
            headers={**self._pool.headers, "Content-Type": content_type},
        )
        if answer.status >= 400:
            raise RefusedError(answer.status, message_of(answer.data))
        self.warnings += answer.headers.getlist("Warning")
        return dict(decode_shallow(json.loads, answer.data))

    def path(self, kind: str, name: str = "", namespace: str | None = None) -> str:
        """Return the path of an object, without a name of a collection."""
        api_version, word = KINDS[kind]
        scope = "" if word in CLUSTER_WIDE else namespace or self.namespace
        return resource_of(api_version, word).path(scope, name)

    def is_ready(self) -> bool:
        """Return True once the API server answers that it is ready."""
        try:
            return bool(self._pool.request("GET", f"{self.url}/readyz", retries=False).status == 200)
        except (
            urllib3.exceptions.HTTPError,
            OSError,
        ):  # its certificate does not exist yet, or nobody listens
            return False

    def serves(self, api_version: str, kind: str) -> bool:
        """Return True once the API server serves a kind, which it does some time after its definition is applied."""
        try:
            self.call("GET", resource_of(api_version, kind).path(), limit="1")
        except RefusedError as error:
            if error.status == 404:
                return False
            raise
        return True

    def apply(self, *manifests: Manifest, manager: str = "tests", **query: str) -> None:
        """Apply on the server's side, one after the other. Unknown fields are refused."""
        options = {"fieldManager": manager, "force": "true", "fieldValidation": "Strict", **query}
        for manifest in manifests:
            self.call("PATCH", path_of(manifest, self.namespace), manifest, APPLY, **options)

    def create(self, manifest: Manifest, **query: str) -> Manifest:
        """Create an object. Unknown fields are refused."""
        options = {"fieldValidation": "Strict", **query}
        return self.call("POST", collection_of(manifest, self.namespace), manifest, **options)

    def create_namespace(self, name: str, **metadata: Any) -> str:
        """Create a namespace if there is none of this name; return the name."""
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, **metadata}})
        return name

    def replace(self, manifest: Manifest) -> None:
        """Replace an object as it was read, whoever manages its fields."""
        self.call("PUT", path_of(manifest, self.namespace), manifest)

    def find(self, kind: str, name: str, namespace: str | None = None) -> Manifest | None:
        """Return an object, or None if there is none."""
        try:
            return self.call("GET", self.path(kind, name, namespace))
        except RefusedError as error:
            if error.status == 404:
                return None
            raise

    def get(self, kind: str, name: str, namespace: str | None = None) -> Manifest:
        """Return an object. Raises NotYetError if there is none."""
        if found := self.find(kind, name, namespace):
            return found
        raise NotYetError(f"there is no {kind} {name}")

    def pod_owners(self, name: str, namespace: str | None = None) -> list[Manifest]:
        """Create a ReplicaSet of an LLMDeployment's Deployment, and return the owner references of its pods."""
        deployment = self.get("deployment", f"{name}-engine", namespace)
        template = deployment["spec"]["template"]
        home, owner = deployment["metadata"]["namespace"], f"{name}-engine-1"
        labels = template["metadata"]["labels"]
        reference = reference_to("apps/v1", "Deployment", deployment)
        metadata = {"name": owner, "namespace": home, "labels": labels, "ownerReferences": [reference]}
        spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
        self.apply({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": metadata, "spec": spec})
        return [reference_to("apps/v1", "ReplicaSet", self.get("replicaset", owner, home))]

    def list(self, kind: str, namespace: str | None = None, **selectors: str) -> list[Manifest]:
        """Return objects, those that `labelSelector` and `fieldSelector` select."""
        return list(self.call("GET", self.path(kind, namespace=namespace), **selectors)["items"])

    def names(self, kind: str, namespace: str | None = None, **selectors: str) -> set[str]:
        """Return the names of objects."""
        return {item["metadata"]["name"] for item in self.list(kind, namespace, **selectors)}

    def patch(
        self,
        kind: str,
        name: str,
        change: object,
        namespace: str | None = None,
        *,
        content_type: str = MERGE,
        subresource: str = "",
    ) -> Manifest:
        path = self.path(kind, name, namespace) + (f"/{subresource}" if subresource else "")
        return self.call("PATCH", path, change, content_type)

    def annotate(
        self, kind: str, name: str, annotations: Mapping[str, str | None], namespace: str | None = None
    ) -> None:
        """Set annotations; None removes one."""
        self.patch(kind, name, {"metadata": {"annotations": dict(annotations)}}, namespace)

    def scale(self, kind: str, name: str, replicas: int, namespace: str | None = None) -> None:
        """Set the replicas of an object by its subresource."""
        self.patch(kind, name, {"spec": {"replicas": replicas}}, namespace, subresource="scale")

    def set_status(self, kind: str, name: str, status: Manifest, namespace: str | None = None) -> None:
        """Report a status, as a controller or a kubelet does."""
        self.patch(kind, name, {"status": status}, namespace, subresource="status")

    def delete(self, kind: str, name: str, namespace: str | None = None) -> None:
        """Delete an object at once: there is no kubelet that would end a pod."""
        options = {"gracePeriodSeconds": 0, "propagationPolicy": "Background"}
        self.call("DELETE", self.path(kind, name, namespace), options)

    def delete_all(self, kind: str, namespace: str | None = None, **selectors: str) -> None:
        """Delete the objects of a namespace at once, those that `labelSelector` and `fieldSelector` select."""
        self.call("DELETE", self.path(kind, namespace=namespace), {"gracePeriodSeconds": 0}, **selectors)

    def token(self, account: str, namespace: str | None = None) -> str:
        """Return a new token of a service account."""
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        path = f"{self.path('serviceaccount', account, namespace)}/token"
        return str(self.call("POST", path, request)["status"]["token"])
