"""The adapters that engines load at their start, in a ConfigMap. Running engines get others over the admin API."""

from collections.abc import Iterator
from typing import Any

import msgspec

from engine_server.contract.cluster.adapters import (
    MAX_IN_MEMORY,
    MAX_IN_STEP,
    MODEL_VARIABLE,
    WantedAdapter,
    WantedAdapters,
)
from engine_server.contract.cluster.model_folder import CLAIM_FOLDER
from engine_server.contract.cluster.model_uri import parse
from engine_server.contract.cluster.sources.claim import VolumeClaim
from llm_operator.api.spec import LLMDeployment
from llm_operator.observed import ADAPTERS_ENTRY, Manifest, Observed, adapters_key
from llm_operator.plan.ownership import child, owned_pods
from llm_operator.plan.pod.engine_command import setting_of
from llm_operator.plan.pod.template import typed
from llm_operator.plan.pod.template_record import read
from llm_operator.plan.pod.volumes import Source, Volume, mounts
from llm_operator.settings import Settings

FOLDER = "/etc/fairlead/adapters"


def plan(deployment: LLMDeployment, observed: Observed, settings: Settings) -> Iterator[Manifest]:
    if deployment.has_adapters:
        listed = [WantedAdapter(each.name, uri_in_pod(each.uri)) for each in deployment.spec.adapters or ()]
        content = msgspec.json.encode(WantedAdapters(listed, deployment.spec.model.uri)).decode()
        yield child(deployment, adapters_key(deployment.name), settings, data={ADAPTERS_ENTRY: content})


def uri_in_pod(uri: str) -> str:
    """Return the URI of an adapter where engines run: on the model's claim, its path."""
    match parse(uri):
        case VolumeClaim(_, path):
            return f"{CLAIM_FOLDER}/{path}" if path else CLAIM_FOLDER
        case _:
            return uri


def flags(deployment: LLMDeployment) -> dict[str, Any]:
    """Return the fields of an EngineCommand by which the engine serves adapters, if there are any.

    The numbers are left to the user if `engine.args` have one.
    """
    if not deployment.has_adapters:
        return {}
    enabled = {"enable_lora": True, "adapters_file": f"{FOLDER}/{ADAPTERS_ENTRY}"}
    if {"max_loras", "max_cpu_loras"} & set(map(setting_of, deployment.spec.engine.args)):
        return enabled
    return {**enabled, "max_loras": MAX_IN_STEP, "max_cpu_loras": MAX_IN_MEMORY}


def variables(deployment: LLMDeployment) -> dict[str, str]:
    """Return the engine's variable that names the model of the list of adapters, if there is one.

    An engine of an earlier model that starts again ignores the list of the present one.
    """
    return {MODEL_VARIABLE: deployment.spec.model.uri} if deployment.has_adapters else {}


def add_adapters(pod: Manifest, deployment: LLMDeployment, origin: Source) -> None:
    """Mount the list of adapters and the model's claim into the engine. No part depends on the list's content."""
    (engine,) = pod["containers"]
    content = {"configMap": {"name": adapters_key(deployment.name).name}}
    volume = Volume("adapters", content, {"mountPath": FOLDER, "readOnly": True})
    pod["volumes"].append({"name": volume.name, **volume.content})
    engine["volumeMounts"] += mounts((volume, *claim(origin)))


def claim(origin: Source) -> Iterator[Volume]:
    """Yield the volume of the claim that holds the model, mounted as a whole: adapters lie beside the model."""
    for volume in origin.volumes:
        if "persistentVolumeClaim" in volume.content:
            yield volume._replace(mount={"mountPath": CLAIM_FOLDER, "readOnly": True})


def of_other_models(wanted: WantedAdapters, observed: Observed) -> set[str]:
    """Return the names of the pods that serve another model than the one that a list of adapters is for."""
    others = set()
    for replica_set in observed.replica_sets:
        record = read(replica_set["metadata"].get("annotations", {}))
        if record is not None and not wanted.is_for(typed(record.template).model):
            others |= {pod["metadata"]["name"] for pod in owned_pods(observed.pods, [replica_set])}
    return others
