"""The files of `engine.files`, and the ConfigMap that holds their contents.

Its name has the hash of the contents, so that pods of an earlier spec keep theirs.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from llm_operator.api.sections.engine import File
from llm_operator.api.spec import LLMDeployment
from llm_operator.api.spec_hash import digest
from llm_operator.observed import ChildKey, Manifest
from llm_operator.plan.ownership import child
from llm_operator.plan.pod.template import typed
from llm_operator.settings import Settings

VOLUME = "files"


def plan(deployment: LLMDeployment, template: Manifest, settings: Settings) -> Iterator[Manifest]:
    """Plan the ConfigMap that a pod template mounts. One with the contents of an earlier spec is left as it is."""
    name = config_map(deployment)
    if name in typed(template).config_maps:
        contents = contents_of(deployment.spec.engine.files)
        yield child(deployment, ChildKey("v1", "ConfigMap", name), settings, data=contents, immutable=True)


def config_map(deployment: LLMDeployment) -> str:
    """Return the name of the ConfigMap with the contents of the spec."""
    contents = contents_of(deployment.spec.engine.files)
    return f"{deployment.name}-files-{digest(msgspec.json.encode(contents, order='sorted'))}"


def contents_of(files: tuple[File, ...]) -> dict[str, str]:
    """Return the contents by the key of their entry in the ConfigMap."""
    return {str(index): file.content for index, file in enumerate(files) if file.content is not None}


def add_files(template: dict[str, Any], deployment: LLMDeployment) -> None:
    """Mount the files into all containers of `template`."""
    files = deployment.spec.engine.files
    if not files:
        return
    pod = template["spec"]
    sources = [source(str(index), file, config_map(deployment)) for index, file in enumerate(files)]
    pod["volumes"].append({"name": VOLUME, "projected": {"sources": sources}})
    for container in (*pod["containers"], *pod.get("initContainers", ())):
        container["volumeMounts"] += [
            {"name": VOLUME, "mountPath": file.path, "subPath": str(index), "readOnly": True}
            for index, file in enumerate(files)
        ]


def source(name: str, file: File, contents: str) -> dict[str, Any]:
    """Return the source of a projected volume that gives `file` the name `name` in it.

    contents: the name of the ConfigMap that holds contents.
    """
    if file.config_map is not None:
        kind, entry = "configMap", file.config_map
    elif file.secret is not None:
        kind, entry = "secret", file.secret
    else:
        return {"configMap": {"name": contents, "items": [{"key": name, "path": name}]}}
    return {kind: {"name": entry.name, "items": [{"key": entry.key, "path": name}]}}
