"""The Kubernetes API as the operator uses it: observe, apply, report."""

import asyncio
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
from aiohttp import ClientError
from kubernetes.aio.client import ApiClient, ApiException, Configuration
from kubernetes.aio.config import load_incluster_config, load_kube_config

from engine_server.contract import api
from engine_server.contract.api import Key
from engine_server.contract.labels import FIELD_MANAGER, child_name, selector_text
from llm_operator.observed import Manifest

REQUEST_SECONDS = 30
# What a call may raise: an answer that is an error, or no answer.
FAILURES = (ApiException, ClientError, OSError, TimeoutError)


class Resource(NamedTuple):
    """Where the API keeps the objects of a kind."""

    group: str
    version: str
    plural: str

    def path(self, namespace: str = "", name: str = "") -> str:
        root = f"/apis/{self.group}" if self.group else "/api"
        scope = f"/namespaces/{namespace}" if namespace else ""
        return f"{root}/{self.version}{scope}/{self.plural}" + (f"/{name}" if name else "")


LLMDEPLOYMENTS = Resource(api.GROUP, api.VERSION, api.PLURAL)
CHILDREN = {
    "ServiceAccount": Resource("", "v1", "serviceaccounts"),
    "Service": Resource("", "v1", "services"),
    "Deployment": Resource("apps", "v1", "deployments"),
}
PODS = Resource("", "v1", "pods")
EVENTS = Resource("", "v1", "events")


async def load_configuration() -> Configuration:
    """KUBECONFIG where it is set, else the pod's service account, else the user's own file."""
    configuration = Configuration()
    if "KUBECONFIG" not in os.environ and "KUBERNETES_SERVICE_HOST" in os.environ:
        load_incluster_config(configuration)  # type: ignore[no-untyped-call]
    else:
        await load_kube_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    return configuration


def described_failure(error: Exception) -> str:
    """What the API server said, or that it said nothing."""
    if not isinstance(error, ApiException):
        return f"{type(error).__name__} {error}".strip()
    try:
        message = json.loads(error.body or "")["message"]
    except (ValueError, KeyError, TypeError):
        message = error.reason
    return str(message)


@dataclass(frozen=True, slots=True)
class Cluster:
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
        try:
            return await self.call("GET", path)
        except ApiException as error:
            if error.status == 404:
                return None
            raise

    async def llmdeployment(self, key: Key) -> Manifest | None:
        return await self.find(LLMDEPLOYMENTS.path(*key))

    async def llmdeployments(self, namespaces: Iterable[str]) -> list[Manifest]:
        """Those of the namespaces, or of all where none is named."""
        paths = [LLMDEPLOYMENTS.path(namespace) for namespace in namespaces] or [LLMDEPLOYMENTS.path()]
        pages = await asyncio.gather(*(self.call("GET", path) for path in paths))
        return [item for page in pages for item in page["items"]]

    async def children(self, key: Key) -> dict[str, Manifest]:
        """What there is, by kind."""
        name = child_name(key.name)
        found = await asyncio.gather(
            *(self.find(resource.path(key.namespace, name)) for resource in CHILDREN.values())
        )
        return {kind: child for kind, child in zip(CHILDREN, found, strict=True) if child is not None}

    async def pods(self, key: Key) -> list[Manifest]:
        page = await self.call("GET", PODS.path(key.namespace), labelSelector=selector_text(key.name))
        items: list[Manifest] = page["items"]
        return items

    async def patch(self, path: str, body: Manifest, content_type: str, **query: str) -> Manifest:
        return await self.call("PATCH", path, body, content_type, fieldManager=FIELD_MANAGER, **query)

    async def apply(self, child: Manifest) -> Manifest:
        """Server-side apply: afterwards every field that the plan names is as the plan says."""
        path = CHILDREN[child["kind"]].path(*Key.of(child))
        return await self.patch(path, child, "application/apply-patch+yaml", force="true")

    async def report(self, key: Key, status: Manifest) -> None:
        path = f"{LLMDEPLOYMENTS.path(*key)}/status"
        await self.patch(path, {"status": status}, "application/merge-patch+json")

    async def post_event(self, subject: Manifest, kind: str, reason: str, message: str) -> None:
        """What `kubectl describe` shows under Events."""
        about = {key: subject["metadata"][key] for key in ("name", "namespace", "uid")}
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        event = {
            "metadata": {"generateName": f"{about['name']}.", "namespace": about["namespace"]},
            "involvedObject": {"apiVersion": api.API_VERSION, "kind": api.KIND, **about},
            "type": kind,
            "reason": reason,
            "message": message[:1024],
            "source": {"component": "fairlead-operator"},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        await self.call("POST", EVENTS.path(about["namespace"]), event)
