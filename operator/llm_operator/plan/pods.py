"""The engine's pod template."""

import math
from typing import Any

import msgspec

from engine_server.contract import labels
from engine_server.contract.drain import PRE_STOP_SECONDS, termination_grace
from llm_operator.api.spec import LLMDeployment, LLMDeploymentSpec, Resources
from llm_operator.plan.overlay import merge
from llm_operator.plan.volumes import FETCHED, MODEL_FOLDER, SCRATCH, Source, mounts, source
from llm_operator.settings import Settings

CACHE_ENV = {"HOME": "/cache", "XDG_CACHE_HOME": "/cache", "HF_HOME": "/cache/huggingface"}


def pod_template(deployment: LLMDeployment, settings: Settings) -> dict[str, Any]:
    """Return the template with the user's podTemplate merged into it. Raises SpecError."""
    spec = deployment.spec
    origin = source(spec.model.uri)
    image = spec.engine.image or settings.engine_image
    pod: dict[str, Any] = {
        "serviceAccountName": labels.child_name(deployment.name),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "terminationGracePeriodSeconds": termination_grace(spec.rollout.drain_timeout_seconds),
        "containers": [engine_container(deployment, origin, image)],
        "volumes": [{"name": volume.name, **volume.content} for volume in (*SCRATCH, *origin.volumes)],
    }
    if origin.fetch is not None:
        pod["initContainers"] = [model_container(spec, origin.fetch, image)]
    if spec.resources.gpu:
        pod["tolerations"] = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    template = {"metadata": {"labels": labels.pod_labels(deployment.name)}, "spec": pod}
    return merge(template, spec.pod_template or {}, settings)


def engine_container(deployment: LLMDeployment, origin: Source, image: str) -> dict[str, Any]:
    resources = deployment.spec.resources
    given: tuple[dict[str, Any], ...] = msgspec.to_builtins(deployment.spec.engine.env)
    models = [{**mount, "readOnly": True} for mount in mounts(origin.volumes)]
    return container(labels.ENGINE_CONTAINER, image, engine_args(deployment, origin)) | {
        "env": environment(*literal(CACHE_ENV | threads(resources)), *given),
        "ports": [{"name": labels.HTTP_PORT_NAME, "containerPort": labels.ENGINE_PORT, "protocol": "TCP"}],
        "resources": compute(resources, resources.gpu),
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


def engine_args(deployment: LLMDeployment, origin: Source) -> list[str]:
    """Return the command line of the engine; the user's flags come last."""
    spec = deployment.spec
    arguments = ["engine", origin.argument]
    arguments += [f"--served-model-name={name}" for name in deployment.routed_names]
    arguments += ["--host=0.0.0.0", f"--port={labels.ENGINE_PORT}"]
    arguments += [f"--drain-timeout={spec.rollout.drain_timeout_seconds}"]
    if spec.engine.max_model_len is not None:
        arguments += [f"--max-model-len={spec.engine.max_model_len}"]
    if spec.resources.gpu > 1:
        arguments += [f"--tensor-parallel-size={spec.resources.gpu}"]
    return [*arguments, *spec.engine.args]


def model_container(spec: LLMDeploymentSpec, uri: str, image: str) -> dict[str, Any]:
    """Return the init container that fetches the model. Only this container gets the hub's token."""
    env = environment(*literal(CACHE_ENV), *msgspec.to_builtins(spec.engine.env))
    if (secret := spec.model.secret_ref) is not None:
        reference = {"secretKeyRef": {"name": secret.name, "key": "token"}}
        env = environment(*env, {"name": "HF_TOKEN", "valueFrom": reference})
    return container(labels.MODEL_CONTAINER, image, ["fetch", uri, "--to", MODEL_FOLDER]) | {
        "env": env,
        "resources": compute(spec.resources, gpus=0),
        "volumeMounts": mounts((*SCRATCH, FETCHED)),
    }


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


def environment(*variables: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the variables without repeated names; the last one of a name wins."""
    return list({variable["name"]: variable for variable in variables}.values())


def literal(values: dict[str, str]) -> list[dict[str, Any]]:
    return [{"name": name, "value": value} for name, value in values.items()]


def threads(resources: Resources) -> dict[str, str]:
    """Return the thread count of a CPU pod: its CPU request, rounded up."""
    if resources.gpu or resources.cpu is None:
        return {}
    cpu = str(resources.cpu)
    cores = float(cpu.removesuffix("m")) / (1000 if cpu.endswith("m") else 1)
    return {"OMP_NUM_THREADS": str(max(1, math.ceil(cores)))}


def compute(resources: Resources, gpus: int) -> dict[str, Any]:
    """Return a container's resource requests and limits."""
    requests = present({"cpu": resources.cpu, "memory": resources.memory})
    limits = present({"memory": resources.memory, "nvidia.com/gpu": gpus or None})
    sections = {"requests": requests, "limits": limits}
    return {name: amounts for name, amounts in sections.items() if amounts}


def present(amounts: dict[str, int | str | None]) -> dict[str, str]:
    return {name: str(amount) for name, amount in amounts.items() if amount is not None}


def http_get(path: str) -> dict[str, Any]:
    return {"httpGet": {"path": path, "port": labels.HTTP_PORT_NAME}}
