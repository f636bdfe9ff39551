"""The Kubernetes API as the operator uses it: observe, apply, prune, report."""

import asyncio
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from kubernetes.aio.client import ApiClient, ApiException, Configuration
from kubernetes.aio.config import load_incluster_config, load_kube_config

from engine_server.contract.base.nesting import decode_shallow
from engine_server.contract.cluster.api import Key
from engine_server.contract.cluster.labels import FIELD_MANAGER
from engine_server.contract.cluster.page_size import AnswerTooLargeError, read_bounded
from llm_operator.control.tracing import counting
from llm_operator.kinds import LLMDEPLOYMENTS, child_path
from llm_operator.observed import ChildKey, Manifest

# The API server answers a page of a list within a second.
REQUEST_SECONDS = 15
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
MANIFEST = msgspec.json.Decoder(dict[str, Any])
# An object, options, or the operations of a JSON patch.
Body = Mapping[str, Any] | list[Mapping[str, Any]]


class Access(Configuration):
    """The address and the credentials of an API server, and the file that they were read from."""

    def __init__(self, kubeconfig: str | None) -> None:
        super().__init__(trace_configs=[counting()])
        # None in a pod.
        self.kubeconfig = kubeconfig


async def load_configuration(kubeconfig: str | None = None) -> Access:
    """Return the access to the cluster: of a file, else of KUBECONFIG, else of the pod, else of the user's own file."""
    configuration = Access(kubeconfig or os.environ.get("KUBECONFIG"))
    if configuration.kubeconfig is None and "KUBERNETES_SERVICE_HOST" in os.environ:
        load_incluster_config(configuration)  # type: ignore[no-untyped-call]
    else:
        await load_kube_config(configuration.kubeconfig, client_configuration=configuration)  # type: ignore[no-untyped-call]
    return configuration


async def reload_credentials(configuration: Access) -> None:
    """Read the credentials again, since tokens are replaced before they expire."""
    fresh = await load_configuration(configuration.kubeconfig)
    configuration.api_key = fresh.api_key
    configuration.refresh_api_key_hook = fresh.refresh_api_key_hook


@dataclass(slots=True)
class Cluster:
    """Calls to one API server. They raise `api_errors.FAILURES`."""

    api: ApiClient
    # The number of calls that were answered, with whatever status.
    answers: int = 0

    async def call(
        self,
        method: str,
        path: str,
        body: Body | None = None,
        content_type: str = "application/json",
        **query: str,
    ) -> Manifest:
        """Call the API server and decode the object that it answers."""
        text = await self.request(method, path, body, content_type, query)
        return decode_shallow(MANIFEST.decode, text)

    async def request(
        self,
        method: str,
        path: str,
        body: Body | None = None,
        content_type: str = "application/json",
        query: Mapping[str, str] | None = None,
        largest: int | None = None,
    ) -> bytes:
        """Call the API server and return its answer. Credentials that it refuses are read again once.

        Raises AnswerTooLargeError for one of more than `largest` bytes.
        """
        try:
            return await self._request(method, path, body, content_type, query, largest)
        except ApiException as error:
            if error.status != 401:
                raise
        await reload_credentials(self.api.configuration)
        return await self._request(method, path, body, content_type, query, largest)

    async def _request(
        self,
        method: str,
        path: str,
        body: Body | None,
        content_type: str,
        query: Mapping[str, str] | None,
        largest: int | None,
    ) -> bytes:
        request = await self.api.param_serialize(
            method,
            path,
            query_params=list((query or {}).items()),
            header_params={"Content-Type": content_type, "Accept": "application/json"},
            body=body,
            auth_settings=["BearerToken"],
        )
        response = await self.api.call_api(*request, _request_timeout=REQUEST_SECONDS)
        try:
            answer = await read_bounded(response.response.content.iter_any(), largest)
        except AnswerTooLargeError:
            response.response.close()
            raise
        self.answers += 1
        if not 200 <= response.status < 300:
            raise ApiException.from_response(http_resp=response, body=answer.decode(), data=None)
        return bytes(answer)

    async def find(self, path: str) -> Manifest | None:
        """Return the object at `path`, or None if there is none."""
        try:
            return await self.call("GET", path)
        except ApiException as error:
            if error.status == 404:
                return None
            raise

    async def look_up(self, namespace: str, keys: Iterable[ChildKey]) -> dict[ChildKey, Manifest | None]:
        """Return the objects that have the names of the given children, or None for each that does not exist."""
        listed = list(keys)
        found = await asyncio.gather(*(self.find(child_path(namespace, key)) for key in listed))
        return dict(zip(listed, found, strict=True))

    async def patch(
        self, path: str, body: Body, content_type: str = MERGE, manager: str = FIELD_MANAGER, **query: str
    ) -> Manifest:
        return await self.call("PATCH", path, body, content_type, fieldManager=manager, **query)

    async def apply(self, namespace: str, key: ChildKey, child: Manifest, manager: str) -> Manifest:
        """Apply on the server's side: afterwards every field that `child` names has the value that it gives.

        Fields that the manager has applied before, and that nobody else has, are removed if `child` lacks them.
        Of two LLMDeployments that create the same Job, the second one gets a conflict, and then looks again.
        """
        force = "false" if key.kind == "Job" else "true"
        try:
            path = child_path(namespace, key)
            return await self.patch(path, child, APPLY, manager, force=force)
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

    async def share(self, namespace: str, key: ChildKey, uid: str, owner: Manifest, manager: str) -> Manifest:
        """Add an owner reference to a shared child with this UID, and return the object as it is then.

        To apply the whole of it for each of many owners takes the API server seconds a time. Raises ApiException with
        status 422 if another object has the name.
        """
        return await self._add(child_path(namespace, key), uid, "/metadata/ownerReferences/-", owner, manager)

    async def release(self, namespace: str, key: ChildKey, owner_uid: str, manager: str) -> None:
        """Remove an owner from a shared child, or delete the child if it has no other one.

        An object that does not have this owner is left alone: it has taken the name of a child that is gone.

        Raises ApiException 409 if somebody changes the child at the same time: of two owners that are removed
        together, the second must see that it is the last.
        """
        existing = await self.find(child_path(namespace, key))
        if existing is None:
            return
        version = existing["metadata"]["resourceVersion"]
        owners = existing["metadata"].get("ownerReferences", ())
        others = [reference for reference in owners if reference["uid"] != owner_uid]
        if len(others) == len(owners):
            return
        if not others:
            return await self._delete(
                namespace, key, uid=existing["metadata"]["uid"], resourceVersion=version
            )
        change = {"metadata": {"resourceVersion": version, "ownerReferences": others}}
        await self.patch(child_path(namespace, key), change, manager=manager)

    async def delete(self, namespace: str, key: ChildKey, *, uid: str) -> None:
        """Delete a child if it still is the object with this UID."""
        try:
            await self._delete(namespace, key, uid=uid)
        except ApiException as error:
            if error.status != 409:  # another object has the name now
                raise

    async def _delete(self, namespace: str, key: ChildKey, **preconditions: str) -> None:
        options = {"propagationPolicy": "Background", "preconditions": preconditions}
        try:
            await self.call("DELETE", child_path(namespace, key), options)
        except ApiException as error:
            if error.status != 404:
                raise

    async def report(self, key: Key, uid: str, status: Manifest) -> Manifest:
        """Replace the status of an LLMDeployment, and return the object as it is then.

        Raises ApiException with status 422 if the object of this name has another UID. A merge patch would not do: the
        API server ignores a UID that comes with a status.
        """
        return await self._add(f"{LLMDEPLOYMENTS.path(*key)}/status", uid, "/status", status)

    async def _add(
        self, path: str, uid: str, place: str, value: Manifest, manager: str = FIELD_MANAGER
    ) -> Manifest:
        """Add a value at a place in the object that has this UID, or replace it, and return the object."""
        # A list: the client would send a tuple as a strategic merge patch.
        operations: list[Mapping[str, Any]] = [
            {"op": "test", "path": "/metadata/uid", "value": uid},
            {"op": "add", "path": place, "value": value},
        ]
        return await self.patch(path, operations, "application/json-patch+json", manager)

    async def claim(self, key: Key, operator: str, resource_version: str) -> Manifest:
        """Record the operator that manages an LLMDeployment, and return the object as it is then.

        Raises ApiException with status 409 if the object has another resource version.
        """
        body = {"metadata": {"resourceVersion": resource_version}, "status": {"operator": operator}}
        return await self.patch(f"{LLMDEPLOYMENTS.path(*key)}/status", body)

    async def scale(self, key: Key, replicas: int, resource_version: str) -> None:
        """Set the number of replicas of an LLMDeployment that still has this resource version."""
        change = {"metadata": {"resourceVersion": resource_version}, "spec": {"replicas": replicas}}
        await self.patch(f"{LLMDEPLOYMENTS.path(*key)}/scale", change)
