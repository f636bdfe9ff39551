"""The volumes of an engine's pod, and the origin of its model."""

from typing import Any, NamedTuple

from engine_server.contract.model_uri import LocalPath, ModelUriError, VolumeClaim, parse
from llm_operator.api.schema import SpecError

MODEL_FOLDER = "/models/model"


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
FETCHED = Volume("models", {"emptyDir": {}}, {"mountPath": "/models"})


class Source(NamedTuple):
    """The origin of a pod's model."""

    # The model argument of `fairlead engine`.
    argument: str
    # The URI that an init container fetches, if any.
    fetch: str | None = None
    # The volumes that hold the model.
    volumes: tuple[Volume, ...] = ()


def source(uri: str) -> Source:
    """Return how a pod gets the model at `uri`. Raises SpecError."""
    try:
        model = parse(uri)
    except ModelUriError as error:
        raise SpecError("spec.model.uri", str(error)) from None
    match model:
        case LocalPath(path):
            return Source(path)
        case VolumeClaim(name, path):
            claim = {"persistentVolumeClaim": {"claimName": name, "readOnly": True}}
            mount = {"mountPath": MODEL_FOLDER, "subPath": path}
            return Source(MODEL_FOLDER, volumes=(Volume("models", claim, mount),))
        case _:
            return Source(MODEL_FOLDER, fetch=uri, volumes=(FETCHED,))


def mounts(volumes: tuple[Volume, ...]) -> list[dict[str, Any]]:
    return [{"name": volume.name, **volume.mount} for volume in volumes]
