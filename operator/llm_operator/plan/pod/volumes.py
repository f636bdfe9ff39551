"""The volumes of an engine's pod, and the origin of its model."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from engine_server.contract.cluster.model_folder import MODEL_FOLDER
from engine_server.contract.cluster.model_uri import parse
from engine_server.contract.cluster.sources.claim import VolumeClaim
from engine_server.contract.cluster.sources.local_path import LocalPath
from llm_operator.api.model_cache import model_cache
from llm_operator.api.sections.model import Model
from llm_operator.api.sections.resources import Resources


class Volume(NamedTuple):
    """A volume, and where containers have it."""

    name: str
    content: dict[str, Any]
    mount: dict[str, Any]


SCRATCH = (
    Volume("tmp", {"emptyDir": {}}, {"mountPath": "/tmp"}),  # noqa: S108
    Volume("cache", {"emptyDir": {}}, {"mountPath": "/cache"}),
    Volume("shm", {"emptyDir": {"medium": "Memory"}}, {"mountPath": "/dev/shm"}),  # noqa: S108
)
# By which the cluster autoscaler removes nodes with pods that have these volumes, which hold nothing to keep.
EVICTION_ANNOTATION = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"
# A block volume belongs to root; the kubelet gives it to the group of the image's user when it is mounted.
WRITABLE_VOLUME: dict[str, Any] = {"fsGroup": 65532, "fsGroupChangePolicy": "OnRootMismatch"}
# Of the pod that fetches into a cache.
FETCH_REQUESTS = {"cpu": "100m", "memory": "512Mi", "ephemeral-storage": "1Gi"}
# A path in the cache of the hub's own tools: a repository, and a snapshot or a file of it.
SNAPSHOT = re.compile("((?:.*/)?models--[^/]+)(/snapshots/.+)")
FETCHED = Volume("models", {"emptyDir": {}}, {"mountPath": "/models"})


class Source(NamedTuple):
    """The origin of a pod's model."""

    # The model argument of `fairlead engine`.
    argument: str
    # The URI that an init container fetches, if any.
    fetch: str | None = None
    # The volumes that hold the model.
    volumes: tuple[Volume, ...] = ()
    # The most that the container which fetches requests of each resource, if that is less than an engine's.
    most_requests: Mapping[str, str] = {}


def source(model: Model) -> Source:
    """Return how an engine's pod gets a model whose URI is valid."""
    if cache := model_cache(model):
        claim = {"persistentVolumeClaim": {"claimName": cache.claim}}
        mount = {"mountPath": MODEL_FOLDER, "subPath": cache.name}
        return Source(MODEL_FOLDER, volumes=(Volume("models", claim, mount),))
    return uncached_source(model)


def filling_source(model: Model) -> Source:
    """Return how a pod gets a model that it fetches into its cache, beside the replicas that it replaces."""
    return source(model)._replace(fetch=model.uri, most_requests=FETCH_REQUESTS)


def uncached_source(model: Model) -> Source:
    """Return how a pod gets a model without its cache."""
    match parse(model.uri):
        case LocalPath(path):
            return Source(path)
        case VolumeClaim(name, path):
            volume = {"persistentVolumeClaim": {"claimName": name, "readOnly": True}}
            mounted, below = linked_folder(path)
            mount = {"mountPath": MODEL_FOLDER} | ({"subPath": mounted} if mounted else {})
            return Source(MODEL_FOLDER + below, volumes=(Volume("models", volume, mount),))
        case _:
            return Source(MODEL_FOLDER, fetch=model.uri, volumes=(FETCHED,))


def linked_folder(path: str) -> tuple[str, str]:
    """Split a path of a claim into the folder to mount, which has all that the model's files link to, and the rest.

    Files of a snapshot in a hub's cache are links to the folder `blobs` of the same repository.
    """
    found = SNAPSHOT.fullmatch(path)
    return (found[1], found[2]) if found else (path, "")


def limited(volume: Volume, resources: Resources) -> dict[str, Any]:
    """Return the content of a volume with the size limit that the resources set for it, if any."""
    limits = {"shm": resources.shm, FETCHED.name: resources.disk}
    limit = limits.get(volume.name)
    if limit is None or "emptyDir" not in volume.content:
        return volume.content
    return {"emptyDir": {**volume.content["emptyDir"], "sizeLimit": str(limit)}}


def mounts(volumes: tuple[Volume, ...]) -> list[dict[str, Any]]:
    return [{"name": volume.name, **volume.mount} for volume in volumes]
