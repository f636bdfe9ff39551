"""The files of `engine.files`, and the ConfigMap that holds their contents.

Its name has the hash of the contents, so that pods of an earlier spec keep theirs. Templates of 0.2.0 mount NAME-files.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from engine_server.contract import labels
from llm_operator.api.sections.engine import File
from llm_operator.api.spec import LLMDeployment
from llm_operator.api.spec_hash import digest
from llm_operator.observed import ChildKey, Manifest, Observed
from llm_operator.plan.ownership import child
from llm_operator.plan.pod.template import typed
from llm_operator.settings import Settings

VOLUME = "files"


def plan(deployment: LLMDeployment, template: Manifest, settings: Settings) -> Iterator[Manifest]:
    """Plan the ConfigMap that a pod template mounts. One with the contents of an earlier spec is left as it is."""
    contents = contents_of(deployment.spec.engine.files)
    mounted = typed(template)
    name, name_in_0_2_0 = config_map(deployment), f"{deployment.name}-files"
    if name in mounted.config_maps:
        planned = child(
            deployment, ChildKey("v1", "ConfigMap", name), settings, data=contents, immutable=True
        )
        planned["metadata"]["labels"] = labels.files_labels(deployment.name, settings.version)
        yield planned
    elif name_in_0_2_0 in mounted.config_maps and mounted.files_hash == hash_of(contents):
        yield child(deployment, ChildKey("v1", "ConfigMap", name_in_0_2_0), settings, data=contents)


def config_map(deployment: LLMDeployment) -> str:
    """Return the name of the ConfigMap with the contents of the spec."""
    return f"{deployment.name}-files-{hash_of(contents_of(deployment.spec.engine.files))}"


def contents_of(files: tuple[File, ...]) -> dict[str, str]:
    """Return the contents by the key of their entry in the ConfigMap."""
    return {str(index): file.content for index, file in enumerate(files) if file.content is not None}


def hash_of(contents: dict[str, str]) -> str:
    return digest(msgspec.json.encode(contents, order="sorted"))


def with_present_name(template: Manifest, deployment: LLMDeployment, observed: Observed) -> Manifest:
    """Return a recorded template of this spec, which mounts the ConfigMap of the present name if it is rolled out anew.

    If it is that of 0.2.0, which the Deployment has, it stays, since another name would replace the replicas.
    """
    name_in_0_2_0 = f"{deployment.name}-files"
    live = typed(observed.workload(deployment.name).get("spec", {}).get("template"))
    recorded = typed(template)
    is_live = name_in_0_2_0 in live.config_maps and live.files_hash == recorded.files_hash
    if is_live or name_in_0_2_0 not in recorded.config_maps:
        return template
    pod = template["spec"]
    volumes = [renamed(volume, name_in_0_2_0, config_map(deployment)) for volume in pod["volumes"]]
    return {**template, "spec": {**pod, "volumes": volumes}}


def renamed(volume: Manifest, before: str, after: str) -> Manifest:
    """Return a volume whose projected sources have another ConfigMap in the place of one."""
    if "projected" not in volume:
        return volume
    sources = [
        source | {"configMap": {**source["configMap"], "name": after}}
        if source.get("configMap", {}).get("name") == before
        else source
        for source in volume["projected"].get("sources") or ()
    ]
    return volume | {"projected": {**volume["projected"], "sources": sources}}


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
    if contents := contents_of(files):
        annotations = template["metadata"].setdefault("annotations", {})
        annotations[labels.FILES_HASH_ANNOTATION] = hash_of(contents)


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
