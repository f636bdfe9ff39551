"""The engine's pod template."""

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from engine_server.contract.base.listening import EVERY_ADDRESS_IN_PODS
from engine_server.contract.cluster import labels
from engine_server.contract.cluster.drain import PRE_STOP_SECONDS, termination_grace
from engine_server.contract.cluster.model_folder import MODEL_FOLDER
from llm_operator.api.quantity import amount
from llm_operator.api.sections.engine import Engine
from llm_operator.api.sections.resources import DEFAULT_GPU_RESOURCE, Resources
from llm_operator.api.spec import LLMDeployment, LLMDeploymentSpec
from llm_operator.plan.pod import adapters, credentials, keys, own_settings, pod_policy, pod_security
from llm_operator.plan.pod.engine_command import EngineCommand
from llm_operator.plan.pod.files import add_files
from llm_operator.plan.pod.overlay import PATH, merge
from llm_operator.plan.pod.profiles import profile_of, with_resources
from llm_operator.plan.pod.template import check_template
from llm_operator.plan.pod.variables import by_name, overridden
from llm_operator.plan.pod.volumes import (
    EVICTION_ANNOTATION,
    FETCHED,
    SCRATCH,
    WRITABLE_VOLUME,
    Source,
    limited,
    mounts,
    source,
)
from llm_operator.settings import Settings

CACHE_ENV = {"HOME": "/cache", "XDG_CACHE_HOME": "/cache", "HF_HOME": "/cache/huggingface"}


def pod_template(
    deployment: LLMDeployment, settings: Settings, origin: Source | None = None
) -> dict[str, Any]:
    """Return the template with those of the profile and of the user merged into it. Raises SpecError.

    The model comes from `origin`, by default from where engines have it.
    """
    profile = profile_of(deployment, settings)
    deployment = with_resources(deployment, profile)
    spec = deployment.spec
    origin = origin or source(spec.model)
    image = spec.engine.image or settings.engine_image
    pod: dict[str, Any] = {
        "serviceAccountName": labels.child_name(deployment.name),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "terminationGracePeriodSeconds": termination_grace(spec.rollout.drain_timeout_seconds),
        "containers": [engine_container(deployment, settings, origin, image)],
        "volumes": [
            {"name": volume.name, **limited(volume, spec.resources)} for volume in (*SCRATCH, *origin.volumes)
        ],
    }
    if spec.model.cache:
        pod["securityContext"] |= WRITABLE_VOLUME
    if deployment.has_adapters:
        adapters.add_adapters(pod, deployment, origin)
    if keys.has_admin(deployment, settings):
        add_keys(pod, deployment)
    if origin.fetch is not None:
        pod["initContainers"] = [model_container(spec, origin.fetch, image, origin.most_requests)]
    if spec.resources.gpus:
        pod["tolerations"] = [
            {"key": taint, "operator": "Exists", "effect": "NoSchedule"}
            for taint in gpu_taints(spec.resources)
        ]
    own_labels = labels.pod_labels(deployment.name)
    scratch = {EVICTION_ANNOTATION: ",".join(volume.name for volume in SCRATCH)}
    template: dict[str, Any] = {"metadata": {"labels": own_labels, "annotations": scratch}, "spec": pod}
    add_files(template, deployment)
    template = merge(template, profile.get("podTemplate", {}), own_labels, may_choose_account=True)
    template = merge(template, spec.pod_template or {}, own_labels, settings.allow_service_account)
    if origin.fetch is None:
        remove_model_container(template, has_job=bool(spec.model.cache))
    check_template(template, own_labels)
    pod_security.check(template, settings.pod_security, PATH)
    pod_policy.check(deployment, profile, settings.pod_policy)
    own_settings.check(deployment, settings)
    return template


def add_keys(pod: dict[str, Any], deployment: LLMDeployment) -> None:
    """Mount the keys that the engine accepts."""
    volume = keys.volume(deployment.name)
    (engine,) = pod["containers"]
    engine["volumeMounts"] += mounts((volume,))
    pod["volumes"].append({"name": volume.name, **volume.content})


def engine_container(
    deployment: LLMDeployment, settings: Settings, origin: Source, image: str
) -> dict[str, Any]:
    arguments = engine_command(deployment, settings, origin).arguments()
    resources = deployment.spec.resources
    given: tuple[dict[str, Any], ...] = msgspec.to_builtins(deployment.spec.engine.env)
    models = [{**mount, "readOnly": True} for mount in mounts(origin.volumes)]
    secrets = credentials.adapter_variables(deployment.spec.model) if deployment.has_adapters else []
    own = [*secrets, *literal(CACHE_ENV | threads(resources) | adapters.variables(deployment))]
    return container(labels.ENGINE_CONTAINER, image, arguments) | {
        "env": overridden(by_name(own), by_name(given)),
        **env_from(deployment.spec.engine),
        "ports": [{"name": labels.HTTP_PORT_NAME, "containerPort": labels.ENGINE_PORT, "protocol": "TCP"}],
        "resources": compute(resources, resources.gpus),
        "volumeMounts": [*mounts(SCRATCH), *models],
        "startupProbe": {
            **http_get("/health"),
            "periodSeconds": 2,
            "timeoutSeconds": 2,
            "failureThreshold": 300,
        },
        "livenessProbe": {
            **http_get("/health"),
            "periodSeconds": 10,
            "timeoutSeconds": 5,
            "failureThreshold": 6,
        },
        "readinessProbe": {
            **http_get("/ready"),
            "periodSeconds": 2,
            "timeoutSeconds": 2,
            "failureThreshold": 3,
        },
        "lifecycle": {"preStop": {"sleep": {"seconds": PRE_STOP_SECONDS}}},
    }


def engine_command(deployment: LLMDeployment, settings: Settings, origin: Source) -> EngineCommand:
    spec = deployment.spec
    return EngineCommand(
        model=origin.argument,
        # The router resolves served names, so that engines need not know them.
        served_model_name=str(deployment.key),
        host=EVERY_ADDRESS_IN_PODS,
        port=labels.ENGINE_PORT,
        drain_timeout=spec.rollout.drain_timeout_seconds,
        max_model_len=spec.engine.max_model_len,
        tensor_parallel_size=spec.resources.gpus if spec.resources.gpus > 1 else None,
        args=spec.engine.args,
        **keys.flags(deployment, settings),
        **adapters.flags(deployment),
    )


def model_container(
    spec: LLMDeploymentSpec, uri: str, image: str, most_requests: Mapping[str, str]
) -> dict[str, Any]:
    """Return the init container that fetches the model, with the source's credentials."""
    given: tuple[dict[str, Any], ...] = msgspec.to_builtins(spec.engine.env)
    own = [*credentials.variables(spec.model), *literal(CACHE_ENV)]
    return container(labels.MODEL_CONTAINER, image, ["fetch", uri, "--to", MODEL_FOLDER]) | {
        "env": overridden(by_name(own), by_name(given)),
        **env_from(spec.engine),
        "resources": with_requests_of(compute(spec.resources, gpus=0), most_requests),
        "volumeMounts": mounts((*SCRATCH, FETCHED)),
    }


def remove_model_container(template: dict[str, Any], *, has_job: bool) -> None:
    """Remove what overlays have for the container that fetches: it runs in the Job of the model's cache, or nowhere.

    Without a Job, one with an image of its own is the user's.
    """
    pod = template["spec"]
    others = [
        each
        for each in pod.pop("initContainers", ())
        if each["name"] != labels.MODEL_CONTAINER or ("image" in each and not has_job)
    ]
    if others:
        pod["initContainers"] = others


def container(name: str, image: str, args: list[str]) -> dict[str, Any]:
    """Return the part that all containers share. It satisfies the restricted Pod Security Standard."""
    security = {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    return {
        "name": name,
        "image": image,
        "args": args,
        "securityContext": security,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def env_from(engine: Engine) -> dict[str, Any]:
    """Return the fields of a container that take variables from ConfigMaps and Secrets."""
    return {"envFrom": [msgspec.to_builtins(each) for each in engine.env_from]} if engine.env_from else {}


def literal(values: dict[str, str]) -> list[dict[str, Any]]:
    return [{"name": name, "value": value} for name, value in values.items()]


def threads(resources: Resources) -> dict[str, str]:
    """Return the thread count of a CPU pod: its CPU request, rounded up."""
    if resources.gpus or resources.cpu is None:
        return {}
    cpu = str(resources.cpu)
    cores = float(cpu.removesuffix("m")) / (1000 if cpu.endswith("m") else 1)
    return {"OMP_NUM_THREADS": str(max(1, math.ceil(cores)))}


def gpu_resource(resources: Resources) -> str:
    """Return the name of the extended resource that GPUs are requested by."""
    return resources.gpu_resource or DEFAULT_GPU_RESOURCE


def gpu_taints(resources: Resources) -> tuple[str, ...]:
    """Return the taints of GPU nodes: the vendor's, and the one that is named like the resource."""
    vendor = gpu_resource(resources).partition("/")[0]
    return tuple(dict.fromkeys((f"{vendor}/gpu", gpu_resource(resources))))


def compute(resources: Resources, gpus: int) -> dict[str, Any]:
    """Return a container's resource requests and limits."""
    shared = {"memory": resources.memory, "ephemeral-storage": resources.disk}
    requests = present({"cpu": resources.cpu, **shared})
    limits = present({**shared, gpu_resource(resources): gpus or None})
    sections = {"requests": requests, "limits": limits}
    return {name: amounts for name, amounts in sections.items() if amounts}


def with_requests_of(resources: dict[str, Any], most: Mapping[str, str]) -> dict[str, Any]:
    """Return a container's resources with requests of at most so much. What it may use stays as it is."""
    if "requests" not in resources:
        return resources
    requests = {
        name: min(given, most.get(name, given), key=amount) for name, given in resources["requests"].items()
    }
    return {**resources, "requests": requests}


def present(amounts: dict[str, int | str | None]) -> dict[str, str]:
    return {name: str(amount) for name, amount in amounts.items() if amount is not None}


def http_get(path: str) -> dict[str, Any]:
    return {"httpGet": {"path": path, "port": labels.HTTP_PORT_NAME}}
