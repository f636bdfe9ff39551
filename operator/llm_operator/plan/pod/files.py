"""The files of `engine.files`, and the ConfigMap that holds their contents."""

from collections.abc import Iterator
from typing import Any

import msgspec

from engine_server.contract import labels
from llm_operator.api.sections.engine import File
from llm_operator.api.spec import LLMDeployment
from llm_operator.api.spec_hash import digest
from llm_operator.observed import ChildKey, Manifest, Observed
from llm_operator.plan.ownership import child
from llm_operator.settings import Settings

VOLUME = "files"


def key(name: str) -> ChildKey:
    return ChildKey("v1", "ConfigMap", f"{name}-files")


def plan(deployment: LLMDeployment, observed: Observed, settings: Settings) -> Iterator[Manifest]:
    if contents := contents_of(deployment.spec.engine.files):
        yield child(deployment, key(deployment.name), settings, data=contents)


def contents_of(files: tuple[File, ...]) -> dict[str, str]:
    """Return the contents by the key of their entry in the ConfigMap."""
    return {str(index): file.content for index, file in enumerate(files) if file.content is not None}


def add_files(template: dict[str, Any], deployment: LLMDeployment) -> None:
    """Mount the files into all containers of `template`."""
    files = deployment.spec.engine.files
    if not files:
        return
    pod = template["spec"]
    sources = [source(str(index), file, deployment.name) for index, file in enumerate(files)]
    pod["volumes"].append({"name": VOLUME, "projected": {"sources": sources}})
    for container in (*pod["containers"], *pod.get("initContainers", ())):
        container["volumeMounts"] += [
            {"name": VOLUME, "mountPath": file.path, "subPath": str(index), "readOnly": True}
            for index, file in enumerate(files)
        ]
    # A change of a content must replace the pods, since mounts by subPath are not updated.
    if contents := contents_of(files):
        annotations = template["metadata"].setdefault("annotations", {})
        annotations[labels.FILES_HASH_ANNOTATION] = digest(msgspec.json.encode(contents, order="sorted"))


def source(name: str, file: File, owner: str) -> dict[str, Any]:
    """Return the source of a projected volume that gives `file` the name `name` in it."""
    if file.config_map is not None:
        kind, entry = "configMap", file.config_map
    elif file.secret is not None:
        kind, entry = "secret", file.secret
    else:
        return {"configMap": {"name": key(owner).name, "items": [{"key": name, "path": name}]}}
    return {kind: {"name": entry.name, "items": [{"key": entry.key, "path": name}]}}
