"""The Kubernetes API as the operator uses it: observe, apply, prune, report."""

import asyncio
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
from kubernetes.aio.client import ApiClient, ApiException, Configuration
from kubernetes.aio.config import load_incluster_config, load_kube_config

from engine_server.contract import api
from engine_server.contract.api import Key
from engine_server.contract.labels import FIELD_MANAGER, selector_text
from llm_operator.observed import ChildKey, Manifest

REQUEST_SECONDS = 30
LONGEST_EVENT_MESSAGE = 1024


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
EVENTS = Resource("", "v1", "events")
# The kinds of children, by apiVersion and kind.
CHILDREN = {
    ("v1", "ServiceAccount"): Resource("", "v1", "serviceaccounts"),
    ("v1", "Service"): Resource("", "v1", "services"),
    ("apps/v1", "Deployment"): Resource("apps", "v1", "deployments"),
}


def child_path(namespace: str, key: ChildKey, name: str | None = None) -> str:
    return CHILDREN[key.api_version, key.kind].path(namespace, key.name if name is None else name)


async def load_configuration() -> Configuration:
    """Return the access to the cluster: of KUBECONFIG if set, else of the pod, else of the user's own file."""
    configuration = Configuration()
    if "KUBECONFIG" not in os.environ and "KUBERNETES_SERVICE_HOST" in os.environ:
        load_incluster_config(configuration)  # type: ignore[no-untyped-call]
    else:
        await load_kube_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    return configuration


@dataclass(frozen=True, slots=True)
class Cluster:
    """Calls to one API server. They raise `api_errors.FAILURES`."""

    api: ApiClient

    async def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
        **query: str,
    ) -> Manifest:
        request = await self.api.param_serialize(
            method,
            path,
            query_params=list(query.items()),
            header_params={"Content-Type": content_type, "Accept": "application/json"},
            body=body,
            auth_settings=["BearerToken"],
        )
        response = await self.api.call_api(*request, _request_timeout=REQUEST_SECONDS)
        text = await response.response.text()
        if not 200 <= response.status < 300:
            raise ApiException.from_response(http_resp=response, body=text, data=None)
        return msgspec.json.decode(text, type=dict[str, Any])

    async def find(self, path: str) -> Manifest | None:
        """Return the object at `path`, or None if there is none."""
        try:
            return await self.call("GET", path)
        except ApiException as error:
            if error.status == 404:
                return None
            raise

    async def llmdeployment(self, key: Key) -> Manifest | None:
        return await self.find(LLMDEPLOYMENTS.path(*key))

    async def llmdeployments(self, namespaces: Iterable[str]) -> list[Manifest]:
        """Return the LLMDeployments of `namespaces`, or of the whole cluster if there are none."""
        paths = [LLMDEPLOYMENTS.path(namespace) for namespace in namespaces] or [LLMDEPLOYMENTS.path()]
        pages = await asyncio.gather(*(self.call("GET", path) for path in paths))
        return [item for page in pages for item in page["items"]]

    async def children(self, namespace: str, keys: Iterable[ChildKey]) -> dict[ChildKey, Manifest]:
        """Return those of the given children that exist."""
        listed = list(keys)
        found = await asyncio.gather(*(self.find(child_path(namespace, key)) for key in listed))
        return {key: child for key, child in zip(listed, found, strict=True) if child is not None}

    async def pods(self, key: Key) -> list[Manifest]:
        page = await self.call("GET", PODS.path(key.namespace), labelSelector=selector_text(key.name))
        items: list[Manifest] = page["items"]
        return items

    async def patch(self, path: str, body: Manifest, content_type: str, **query: str) -> Manifest:
        return await self.call("PATCH", path, body, content_type, fieldManager=FIELD_MANAGER, **query)

    async def apply(self, namespace: str, key: ChildKey, child: Manifest) -> Manifest:
        """Apply on the server's side: afterwards every field that `child` names has the value that it gives."""
        try:
            path = child_path(namespace, key)
            return await self.patch(path, child, "application/apply-patch+yaml", force="true")
        except ApiException as error:
            if error.status == 500:
                await self.validate(namespace, key, child)
            raise

    async def validate(self, namespace: str, key: ChildKey, child: Manifest) -> None:
        """Raise ApiException if the API server rejects the content of `child`.

        To an apply it answers 500 without a reason if a field has a wrong type or is unknown. A creation of the same
        object, tried without effect, is rejected with 400 or 422.
        """
        try:
            path = child_path(namespace, key, name="")
            await self.call("POST", path, child, dryRun="All", fieldValidation="Strict")
        except ApiException as error:
            if error.status in (400, 422):
                raise

    async def delete(self, namespace: str, key: ChildKey, uid: str) -> None:
        """Delete a child if it still is the object with this UID."""
        options = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        try:
            await self.call("DELETE", child_path(namespace, key), options)
        except ApiException as error:
            if error.status not in (404, 409):
                raise

    async def report(self, key: Key, status: Manifest) -> None:
        path = f"{LLMDEPLOYMENTS.path(*key)}/status"
        await self.patch(path, {"status": status}, "application/merge-patch+json")

    async def post_event(self, subject: Manifest, kind: str, reason: str, message: str) -> None:
        """Create an event, which `kubectl describe` shows."""
        about = {key: subject["metadata"][key] for key in ("name", "namespace", "uid")}
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        event = {
            "metadata": {"generateName": f"{about['name']}.", "namespace": about["namespace"]},
            "involvedObject": {"apiVersion": api.API_VERSION, "kind": api.KIND, **about},
            "type": kind,
            "reason": reason,
            "message": message[:LONGEST_EVENT_MESSAGE],
            "source": {"component": "fairlead-operator"},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        await self.call("POST", EVENTS.path(about["namespace"]), event)
