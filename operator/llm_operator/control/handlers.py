"""The watches of kopf. Handlers only wake the reconciler, so kopf leaves no finalizer or annotation on any object."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import kopf
from kubernetes.aio.client import Configuration

from engine_server.contract.api import Key
from engine_server.contract.labels import LLMDEPLOYMENT_LABEL
from llm_operator.control.cluster import CHILDREN, LLMDEPLOYMENTS, PODS
from llm_operator.control.reconcile import Reconciler
from llm_operator.observed import ChildKey

Event = Mapping[str, Any]
Handler = Callable[..., Awaitable[None]]


def registry(reconciler: Reconciler, configuration: Configuration) -> kopf.OperatorRegistry:
    """Return the handlers that wake `reconciler`."""
    handlers = kopf.OperatorRegistry()
    kopf.on.login(registry=handlers)(login(configuration))
    watch: Callable[..., Any] = kopf.on.event
    watch(*LLMDEPLOYMENTS, registry=handlers)(on_llmdeployment(reconciler))
    labeled = {LLMDEPLOYMENT_LABEL: kopf.PRESENT}
    for (api_version, kind), resource in CHILDREN.items():
        watch(*resource, registry=handlers, labels=labeled)(on_child(reconciler, api_version, kind))
    watch(*PODS, registry=handlers, labels=labeled)(on_pod(reconciler))
    return handlers


def login(configuration: Configuration) -> Callable[..., Awaitable[kopf.ConnectionInfo]]:
    async def login(**_: Any) -> kopf.ConnectionInfo:
        """Return the credentials that our own calls use. kopf asks again when they expire."""
        header = await configuration.get_api_key_with_prefix("BearerToken")
        return kopf.ConnectionInfo(
            server=configuration.host,
            ca_path=configuration.ssl_ca_cert,
            insecure=not configuration.verify_ssl,
            token=header.split(" ", 1)[-1] if header else None,
            certificate_path=configuration.cert_file,
            private_key_path=configuration.key_file,
        )

    return login


def on_llmdeployment(reconciler: Reconciler) -> Handler:
    async def llmdeployment(event: Event, **_: Any) -> None:
        if event["type"] == "DELETED":
            reconciler.saw_gone(Key.of(event["object"]))
        else:
            reconciler.saw(event["object"])

    return llmdeployment


def on_child(reconciler: Reconciler, api_version: str, kind: str) -> Handler:
    async def child(event: Event, **_: Any) -> None:
        key = ChildKey(api_version, kind, event["object"]["metadata"]["name"])
        if event["type"] == "DELETED":
            reconciler.saw_child_gone(owner(event), key)
        else:
            reconciler.saw_child(owner(event), key)

    return child


def on_pod(reconciler: Reconciler) -> Handler:
    async def pod(event: Event, **_: Any) -> None:
        reconciler.wake(owner(event))

    return pod


def owner(event: Event) -> Key:
    """Return the LLMDeployment that a labeled object belongs to."""
    metadata = event["object"]["metadata"]
    return Key(metadata["namespace"], metadata["labels"][LLMDEPLOYMENT_LABEL])


def settings() -> kopf.OperatorSettings:
    """Return kopf's settings."""
    chosen = kopf.OperatorSettings()
    # Our Lease elects the operator that works.
    chosen.peering.standalone = True
    # Namespaces and definitions are not watched, since that needs cluster-wide rights.
    chosen.scanning.disabled = True
    chosen.posting.enabled = False
    chosen.networking.request_timeout = 30
    chosen.networking.connect_timeout = 10
    chosen.watching.connect_timeout = 10
    # Ends watches that stall silently; the API server sends a bookmark every minute.
    chosen.watching.inactivity_timeout = 70
    chosen.process.ultimate_exiting_timeout = 30
    for group, version, plural in (*CHILDREN.values(), PODS):
        chosen.watching.label_selectors[group, version, plural] = LLMDEPLOYMENT_LABEL
    return chosen
