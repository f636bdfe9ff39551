"""The Job that downloads a model into its cache.

Others load what it writes, so nothing in it that could choose the content is the tenant's, but for the URI and the
Secret, on which the cache's identity depends: it runs the operator's image, with what the administrator's profile has.
"""

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from engine_server.contract.cluster import labels
from llm_operator.api.model_cache import ModelCache
from llm_operator.api.schema import SpecError
from llm_operator.api.sections.engine import Engine
from llm_operator.api.spec import LLMDeployment, LLMDeploymentSpec
from llm_operator.api.spec_hash import digest, spec_hash
from llm_operator.observed import Manifest, fetch_key
from llm_operator.plan.ownership import shared_child
from llm_operator.plan.pod.affinity import without_terms
from llm_operator.plan.pod.overlay import PATH
from llm_operator.plan.pod.pods import gpu_resource, pod_template
from llm_operator.plan.pod.profiles import profile_of, with_resources
from llm_operator.plan.pod.volumes import EVICTION_ANNOTATION, FETCHED, filling_source
from llm_operator.settings import Settings

FOLDER = FETCHED.mount["mountPath"]
# A failed fetch is repeated for as long as it is wanted: the remedy may be a Secret or a volume, outside of the spec.
BACKOFF_LIMIT = 2**31 - 1
# The operator deletes a finished Job; this is for one that no operator looks after.
SECONDS_AFTER_FINISHED = 3600
# Parts of an engine's pod that the pod of a Job does not have.
ENGINES_ALONE = (
    "initContainers",
    "resourceClaims",
    "restartPolicy",
    "terminationGracePeriodSeconds",
    "topologySpreadConstraints",
)
# Variables of `engine.env` that the Job has too. Behind a proxy, TLS still authenticates the source.
VARIABLES = ("AWS_SKIP_SIGNATURE", "HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy")
# Fields of a podTemplate's spec that the Job has too: where it runs, as whom, and what it may pull and write.
PLACEMENT = (
    *("affinity", "nodeName", "nodeSelector", "priorityClassName", "runtimeClassName", "schedulerName"),
    *("tolerations", "imagePullSecrets", "securityContext", "serviceAccount", "serviceAccountName"),
)


def fetch_job(
    deployment: LLMDeployment, cache: ModelCache, settings: Settings, *, is_on_gpus: bool
) -> Manifest:
    """Return the Job. With `is_on_gpus` it asks for an engine's GPUs, so that its volume is created beside them."""
    spec = {
        "backoffLimit": BACKOFF_LIMIT,
        "podReplacementPolicy": "Failed",
        "ttlSecondsAfterFinished": SECONDS_AFTER_FINISHED,
        "template": fetch_template(deployment, cache, settings, is_on_gpus=is_on_gpus),
    }
    manifest = shared_child(deployment, fetch_key(cache.name), settings, spec=spec)
    manifest["metadata"]["annotations"] = {
        labels.FETCH_OWNER_ANNOTATION: deployment.metadata.uid,
        labels.FETCH_SPEC_ANNOTATION: fetch_spec(deployment, settings),
    }
    return manifest


def fetch_spec(deployment: LLMDeployment, settings: Settings) -> str:
    """Return the hash of all that a Job has of an LLMDeployment and its profile, whatever a release makes of it."""
    given = f"{deployment.name} {spec_hash(confined(deployment).spec)}"
    if profile := profile_of(deployment, settings):
        given += json.dumps(profile, sort_keys=True)
    return digest(given.encode())


def fetch_template(
    deployment: LLMDeployment, cache: ModelCache, settings: Settings, *, is_on_gpus: bool
) -> dict[str, Any]:
    """Return the engines' pod template with nothing but the container that fetches, and with the claim as its volume.

    It is placed as the engines are, since the volume must be where they can use it. Raises SpecError.
    """
    model = deployment.spec.model
    engines = with_resources(deployment, profile_of(deployment, settings)).spec.resources
    gpus = engines.gpus if is_on_gpus else 0
    placed = confined(deployment) if gpus else without_runtime_class(confined(deployment))
    template = pod_template(placed, settings, filling_source(model))
    pod = template["spec"]
    fetch = fetching_container(pod)
    container = fetch | {
        "args": [
            "fetch",
            model.uri,
            "--to",
            f"{FOLDER}/{cache.name}",
            f"--progress-port={labels.ENGINE_PORT}",
        ],
        "ports": [{"name": labels.HTTP_PORT_NAME, "containerPort": labels.ENGINE_PORT, "protocol": "TCP"}],
        "resources": with_gpus(fetch.get("resources", {}), gpu_resource(engines), gpus),
    }
    claim = {"name": FETCHED.name, "persistentVolumeClaim": {"claimName": cache.claim}}
    mounted = {mount["name"] for mount in fetch["volumeMounts"]} - {FETCHED.name}
    kept = {name: value for name, value in pod.items() if name not in ENGINES_ALONE}
    metadata = fetch_metadata(deployment, cache, template["metadata"])
    if "affinity" in kept:
        kept["affinity"] = without_engines(
            kept["affinity"], deployment.namespace, template["metadata"]["labels"], metadata["labels"]
        )
    kept |= {
        "restartPolicy": "OnFailure",
        "containers": [container],
        "volumes": [claim, *(volume for volume in pod["volumes"] if volume["name"] in mounted)],
    }
    return {"metadata": metadata, "spec": kept}


def with_gpus(resources: Mapping[str, Any], name: str, gpus: int) -> dict[str, Any]:
    """Return the resources of the container that fetches with so many GPUs, and without devices that are claimed."""
    kept = {field: value for field, value in resources.items() if field != "claims"}
    return kept | {"limits": {**kept.get("limits", {}), name: str(gpus)}} if gpus else kept


def without_engines(
    affinity: object, namespace: str, engines: Mapping[str, str], own: Mapping[str, str]
) -> object:
    """Return an affinity without the terms that select engines, which run later, or on the nodes that are wanted.

    One to which the Job's own labels lead too stays: the first pod satisfies it by itself.
    """
    affinity = without_terms(
        affinity,
        "podAffinity",
        lambda term: term.selects(engines, namespace) and not term.selects(own, namespace),
    )
    return without_terms(affinity, "podAntiAffinity", lambda term: term.selects(engines, namespace))


def fetch_metadata(deployment: LLMDeployment, cache: ModelCache, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the engines' annotations and labels without the operator's own.

    By its labels the Service would select the pod, and by its annotation the cluster autoscaler end the download.
    """
    own = labels.pod_labels(deployment.name)
    others = {name: value for name, value in given["labels"].items() if name not in own}
    annotations = {**given.get("annotations", {})}
    annotations.pop(EVICTION_ANNOTATION, None)
    metadata = {"labels": others | labels.fetch_pod_labels(cache.name)}
    return metadata | ({"annotations": annotations} if annotations else {})


def fetching_container(pod: Mapping[str, Any]) -> dict[str, Any]:
    """Return the container that fetches. Raises SpecError if a profile has removed it, or its place for the model."""
    path = f"{PATH}.spec.initContainers"
    found = [entry for entry in pod.get("initContainers", ()) if entry["name"] == labels.MODEL_CONTAINER]
    if not found:
        raise SpecError(path, "the container model, which downloads into the cache, cannot be removed")
    mounts = found[0].get("volumeMounts", ())
    if not any((mount["name"], mount["mountPath"]) == (FETCHED.name, FOLDER) for mount in mounts):
        raise SpecError(
            f"{path}[{labels.MODEL_CONTAINER}].volumeMounts", f"the volume models must be at {FOLDER}"
        )
    container: dict[str, Any] = found[0]
    return container


def confined(deployment: LLMDeployment) -> LLMDeployment:
    """Return a copy with only the fields that may reach the shared download Job."""
    spec = deployment.spec
    given = spec.pod_template or {}
    confined_spec = LLMDeploymentSpec(
        model=spec.model,
        engine=Engine(env=tuple(variable for variable in spec.engine.env if variable.name in VARIABLES)),
        # The number of GPUs is the engines', but pods for nodes with GPUs tolerate these.
        resources=msgspec.structs.replace(spec.resources, gpu=spec.resources.gpu and 1),
        profile=spec.profile,
        pod_template={"metadata": given.get("metadata") or {}, "spec": placement(given.get("spec") or {})},
    )
    return msgspec.structs.replace(deployment, spec=confined_spec)


def without_runtime_class(deployment: LLMDeployment) -> LLMDeployment:
    """Return a copy without the runtime class of the podTemplate, which may be for nodes with GPUs alone.

    That of a profile stays: it may be the administrator's sandbox.
    """
    given = deployment.spec.pod_template or {}
    pod = {name: value for name, value in given["spec"].items() if name != "runtimeClassName"}
    spec = msgspec.structs.replace(deployment.spec, pod_template={**given, "spec": pod})
    return msgspec.structs.replace(deployment, spec=spec)


def devices(job: Manifest) -> dict[str, str]:
    """Return the number of devices that a Job asks for, by the name of the resource."""
    (container,) = job["spec"]["template"]["spec"]["containers"]
    limits = container.get("resources", {}).get("limits", {})
    return {name: str(number) for name, number in limits.items() if "/" in name}


def placement(pod: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a podTemplate's spec that the Job has too, with the resources of its container."""
    resources = [
        {"name": labels.MODEL_CONTAINER, "resources": container["resources"]}
        for container in pod.get("initContainers") or ()
        if container["name"] == labels.MODEL_CONTAINER and "resources" in container
    ]
    placed = {name: pod[name] for name in PLACEMENT if name in pod}
    return placed | {"initContainers": resources} if resources else placed
