"""The Kubernetes API as the operator uses it: observe, apply, report."""

import asyncio
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from aiohttp import ClientError
from kubernetes.aio.client import ApiClient, ApiException, Configuration
from kubernetes.aio.config import load_incluster_config, load_kube_config

from llm_operator import names
from llm_operator.observed import Manifest

REQUEST_SECONDS = 30
# What a call may raise: an answer that is an error, or no answer.
FAILURES = (ApiException, ClientError, OSError, TimeoutError)
# The children's kinds and where the API keeps them.
CHILD_KINDS = {
    "ServiceAccount": ("api/v1", "serviceaccounts"),
    "Service": ("api/v1", "services"),
    "Deployment": ("apis/apps/v1", "deployments"),
}
LLMDEPLOYMENTS = f"apis/{names.API_VERSION}"


class Key(NamedTuple):
    """What tells one LLMDeployment from another."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


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
            f"/{path}",
            query_params=list(query.items()),
            header_params={"Content-Type": content_type, "Accept": "application/json"},
            body=body,
            auth_settings=["BearerToken"],
        )
        response = await self.api.call_api(*request, _request_timeout=REQUEST_SECONDS)
        text = await response.response.text()
        if not 200 <= response.status < 300:
            raise ApiException.from_response(http_resp=response, body=text, data=None)
        answer: Manifest = json.loads(text)
        return answer

    async def find(self, path: str) -> Manifest | None:
        try:
            return await self.call("GET", path)
        except ApiException as error:
            if error.status == 404:
                return None
            raise

    # --- LLMDeployments

    async def llmdeployment(self, key: Key) -> Manifest | None:
        return await self.find(llmdeployment_path(key))

    async def llmdeployments(self, namespaces: Iterable[str]) -> list[Manifest]:
        """Those of the namespaces, or of all where none is named."""
        paths = [f"{LLMDEPLOYMENTS}/namespaces/{namespace}/{names.PLURAL}" for namespace in namespaces]
        pages = await asyncio.gather(
            *(self.call("GET", path) for path in paths or [f"{LLMDEPLOYMENTS}/{names.PLURAL}"])
        )
        return [item for page in pages for item in page["items"]]

    async def report(self, key: Key, status: Manifest) -> None:
        """Replaces the status; a merge patch would keep what is no longer said."""
        body = {"apiVersion": names.API_VERSION, "kind": names.KIND, "status": status}
        await self.call(
            "PATCH",
            f"{llmdeployment_path(key)}/status",
            body,
            "application/merge-patch+json",
            fieldManager=names.FIELD_MANAGER,
        )

    # --- children

    async def children(self, key: Key) -> dict[str, Manifest]:
        """What there is, by kind."""
        found = await asyncio.gather(
            *(self.find(child_path(kind, key.namespace, names.child_name(key.name))) for kind in CHILD_KINDS)
        )
        return {kind: child for kind, child in zip(CHILD_KINDS, found, strict=True) if child is not None}

    async def pods(self, key: Key) -> list[Manifest]:
        selector = ",".join(f"{label}={value}" for label, value in names.selector(key.name).items())
        page = await self.call("GET", f"api/v1/namespaces/{key.namespace}/pods", labelSelector=selector)
        items: list[Manifest] = page["items"]
        return items

    async def apply(self, child: Manifest) -> Manifest:
        """Server-side apply: afterwards every field that the plan names is as the plan says."""
        metadata = child["metadata"]
        return await self.call(
            "PATCH",
            child_path(child["kind"], metadata["namespace"], metadata["name"]),
            child,
            "application/apply-patch+yaml",
            fieldManager=names.FIELD_MANAGER,
            force="true",
        )

    async def post_event(self, subject: Manifest, kind: str, reason: str, message: str) -> None:
        """What `kubectl describe` shows under Events."""
        about = {key: subject["metadata"][key] for key in ("name", "namespace", "uid")}
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        event = {
            "metadata": {"generateName": f"{about['name']}.", "namespace": about["namespace"]},
            "involvedObject": {"apiVersion": names.API_VERSION, "kind": names.KIND, **about},
            "type": kind,
            "reason": reason,
            "message": message[:1024],
            "source": {"component": "fairlead-operator"},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        await self.call("POST", f"api/v1/namespaces/{about['namespace']}/events", event)


def llmdeployment_path(key: Key) -> str:
    return f"{LLMDEPLOYMENTS}/namespaces/{key.namespace}/{names.PLURAL}/{key.name}"


def child_path(kind: str, namespace: str, name: str) -> str:
    group, plural = CHILD_KINDS[kind]
    return f"{group}/namespaces/{namespace}/{plural}/{name}"
