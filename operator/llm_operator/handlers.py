"""The handlers of kopf, which watches the cluster. They only fill the store, and queue the LLMDeployments that a change
affects, so kopf leaves no finalizer and no annotation on any object.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import kopf

from engine_server.contract.cluster.api import Key
from engine_server.contract.cluster.labels import LLMDEPLOYMENT_LABEL
from llm_operator.control.queue import WorkQueue
from llm_operator.control.turns import Priority
from llm_operator.control.watching import kopf_settings
from llm_operator.control.watching.sessions import Sessions
from llm_operator.control.watching.store import Ref, Store, version_of
from llm_operator.kinds import LLMDEPLOYMENTS, OWNED, Resource

Event = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Memo:
    """What a run of kopf has of its own: one watches a namespace, or the whole cluster."""

    store: Store
    queue: WorkQueue
    sessions: Sessions
    watch_silence_seconds: float

    def __copy__(self) -> "Memo":
        """Return itself: kopf makes a copy for each object."""
        return self


@kopf.on.startup()
async def configure(settings: kopf.OperatorSettings, memo: Memo, **_: Any) -> None:
    """Choose kopf's settings."""
    kopf_settings.choose(settings, memo.watch_silence_seconds)
    for resource in OWNED:
        settings.watching.label_selectors[*resource] = LLMDEPLOYMENT_LABEL


@kopf.on.login()
async def log_in(memo: Memo, **_: Any) -> kopf.AiohttpSession:
    """Return a session with the credentials that our own calls use. kopf asks again when they were refused."""
    return await memo.sessions.open()


@kopf.on.event(*LLMDEPLOYMENTS)
async def llmdeployment_changed(event: Event, memo: Memo, **_: Any) -> None:
    """Take an edit before changes of children."""
    edited = Key.of(event["object"])
    for key in take(
        event, LLMDEPLOYMENTS, memo.store
    ):  # others too when a name that it claims has another holder
        memo.queue.add(key, Priority.EDIT if key == edited else Priority.EVENT)


async def owned_changed(event: Event, resource: kopf.Resource, memo: Memo, **_: Any) -> None:
    """Queue the LLMDeployments to which an object belongs: a child, or a ReplicaSet or a pod of one."""
    kind = Resource(resource.group, resource.version, resource.plural)
    for key in take(event, kind, memo.store):
        memo.queue.add(key, Priority.EVENT)


for owned in OWNED:
    kopf.on.event(*owned)(owned_changed)


def take(event: Event, resource: Resource, store: Store) -> frozenset[Key]:
    """Bring the store up to date with an event; return the LLMDeployments that are affected."""
    manifest = event["object"]
    if event["type"] == "DELETED":
        return store.remove(Ref.of(resource, manifest), version_of(manifest))
    return store.put(resource, manifest)
