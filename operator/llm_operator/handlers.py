"""What kopf watches. Handlers only wake the reconciler, so kopf leaves no mark on any object."""

from collections.abc import Callable, Mapping
from typing import Any

import kopf
from kubernetes.aio.client import Configuration

from engine_server.contract.api import Key
from engine_server.contract.labels import LLMDEPLOYMENT_LABEL
from llm_operator.cluster import CHILDREN, LLMDEPLOYMENTS, PODS
from llm_operator.reconcile import Reconciler

Event = Mapping[str, Any]


def registry(reconciler: Reconciler, configuration: Configuration) -> kopf.OperatorRegistry:
    handlers = kopf.OperatorRegistry()

    async def login(**_: Any) -> kopf.ConnectionInfo:
        """The same credentials that our own calls use; asked for again when they expire."""
        header = await configuration.get_api_key_with_prefix("BearerToken")
        return kopf.ConnectionInfo(
            server=configuration.host,
            ca_path=configuration.ssl_ca_cert,
            insecure=not configuration.verify_ssl,
            token=header.split(" ", 1)[-1] if header else None,
            certificate_path=configuration.cert_file,
            private_key_path=configuration.key_file,
        )

    async def llmdeployment(event: Event, **_: Any) -> None:
        if event["type"] == "DELETED":
            reconciler.saw_gone(Key.of(event["object"]))
        else:
            reconciler.saw(event["object"])

    async def child(event: Event, **_: Any) -> None:
        metadata = event["object"]["metadata"]
        reconciler.wake(Key(metadata["namespace"], metadata["labels"][LLMDEPLOYMENT_LABEL]))

    kopf.on.login(registry=handlers)(login)
    watch: Callable[..., Any] = kopf.on.event
    watch(*LLMDEPLOYMENTS, registry=handlers)(llmdeployment)
    for resource in (*CHILDREN.values(), PODS):
        watch(*resource, registry=handlers, labels={LLMDEPLOYMENT_LABEL: kopf.PRESENT})(child)
    return handlers


def settings() -> kopf.OperatorSettings:
    chosen = kopf.OperatorSettings()
    chosen.peering.standalone = True  # our Lease chooses the one that works
    chosen.scanning.disabled = True  # neither namespaces nor definitions are watched
    chosen.posting.enabled = False
    chosen.networking.request_timeout = 30
    chosen.networking.connect_timeout = 10
    chosen.watching.connect_timeout = 10
    chosen.watching.inactivity_timeout = 70  # streams that stall in silence; bookmarks come each minute
    chosen.process.ultimate_exiting_timeout = 30
    for group, version, plural in (*CHILDREN.values(), PODS):
        chosen.watching.label_selectors[group, version, plural] = LLMDEPLOYMENT_LABEL
    return chosen
