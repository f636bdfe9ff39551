"""The engine's pod template."""

import math
import re
from decimal import Decimal
from typing import Any, NamedTuple

from llm_operator import names
from llm_operator.podtemplate import merge
from llm_operator.settings import Settings
from llm_operator.spec import LLMDeployment, Resources

MODEL_FOLDER = "/models/model"
STOP_MARGIN_SECONDS = 15  # between the end of the drain and the kubelet's SIGKILL
PRE_STOP_SECONDS = 3  # lets routers see the pod leave before it is told
CACHE_ENV = {"HOME": "/cache", "XDG_CACHE_HOME": "/cache", "HF_HOME": "/cache/huggingface"}


class Source(NamedTuple):
    """Where a pod gets its model."""

    argument: str  # what the engine is given
    fetch: str | None = None  # the URI to bring into the pod first
    claim: str | None = None
    path: str | None = None  # on the claim


def source(uri: str) -> Source:
    scheme, separator, rest = uri.partition("://")
    if separator and scheme == "pvc":
        claim, _, path = rest.partition("/")
        return Source(MODEL_FOLDER, claim=claim, path=path.strip("/"))
    if separator or re.fullmatch(r"[\w-][\w.-]*/[\w.-]+(@[\w./-]+)?", uri):
        return Source(MODEL_FOLDER, fetch=uri)
    return Source(uri)


def pod_template(deployment: LLMDeployment, settings: Settings) -> dict[str, Any]:
    spec = deployment.spec
    origin = source(spec.model.uri)
    image = spec.engine.image or settings.engine_image
    grace = spec.rollout.drain_timeout_seconds + STOP_MARGIN_SECONDS
    pod: dict[str, Any] = {
        "serviceAccountName": names.child_name(deployment.name),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "terminationGracePeriodSeconds": grace,
        "containers": [engine_container(deployment, origin, image)],
        "volumes": volumes(origin),
    }
    if origin.fetch is not None:
        pod["initContainers"] = [model_container(deployment, origin.fetch, image)]
    if spec.resources.gpu:
        pod["tolerations"] = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    template = {"metadata": {"labels": names.pod_labels(deployment.name)}, "spec": pod}
    return merge(template, spec.pod_template or {}, settings)


def engine_container(deployment: LLMDeployment, origin: Source, image: str) -> dict[str, Any]:
    return {
        "name": names.ENGINE_CONTAINER,
        "image": image,
        "args": engine_args(deployment, origin),
        "env": environment(deployment, threads=True),
        "ports": [{"name": names.HTTP_PORT, "containerPort": names.ENGINE_PORT, "protocol": "TCP"}],
        "resources": compute(deployment.spec.resources, gpu=True),
        "securityContext": confined(),
        "volumeMounts": mounts(origin, models_read_only=True),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "startupProbe": {**ask("/health"), "periodSeconds": 2, "timeoutSeconds": 2, "failureThreshold": 300},
        "livenessProbe": {**ask("/health"), "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 6},
        "readinessProbe": {**ask("/ready"), "periodSeconds": 2, "timeoutSeconds": 2, "failureThreshold": 3},
        "lifecycle": {"preStop": {"sleep": {"seconds": PRE_STOP_SECONDS}}},
    }


def engine_args(deployment: LLMDeployment, origin: Source) -> list[str]:
    spec = deployment.spec
    arguments = ["engine", origin.argument]
    arguments += [f"--served-model-name={name}" for name in deployment.routed_names]
    arguments += ["--host=0.0.0.0", f"--port={names.ENGINE_PORT}"]
    arguments += [f"--drain-timeout={spec.rollout.drain_timeout_seconds}"]
    if spec.engine.max_model_len is not None:
        arguments += [f"--max-model-len={spec.engine.max_model_len}"]
    if spec.resources.gpu > 1:
        arguments += [f"--tensor-parallel-size={spec.resources.gpu}"]
    return [*arguments, *spec.engine.args]


def model_container(deployment: LLMDeployment, uri: str, image: str) -> dict[str, Any]:
    """Brings the model to where the engine reads it; the one container that sees the hub's token."""
    secret = deployment.spec.model.secret_ref
    env = environment(deployment, threads=False)
    if secret is not None:
        token = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": secret.name, "key": "token"}}}
        env = [*(entry for entry in env if entry["name"] != "HF_TOKEN"), token]
    return {
        "name": names.MODEL_CONTAINER,
        "image": image,
        "args": ["fetch", uri, "--to", MODEL_FOLDER],
        "env": env,
        "resources": compute(deployment.spec.resources, gpu=False),
        "securityContext": confined(),
        "volumeMounts": mounts(source(uri), models_read_only=False),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def environment(deployment: LLMDeployment, threads: bool) -> list[dict[str, Any]]:
    spec = deployment.spec
    env: dict[str, dict[str, Any]] = {name: {"value": value} for name, value in CACHE_ENV.items()}
    if threads and spec.resources.gpu == 0 and spec.resources.cpu is not None:
        env["OMP_NUM_THREADS"] = {"value": str(max(1, math.ceil(cores(spec.resources.cpu))))}
    for variable in spec.engine.env:
        env[variable.name] = (
            {"valueFrom": variable.value_from}
            if variable.value_from is not None
            else {"value": variable.value or ""}
        )
    return [{"name": name, **content} for name, content in env.items()]


def compute(resources: Resources, gpu: bool) -> dict[str, Any]:
    requests: dict[str, str] = {}
    limits: dict[str, str] = {}
    if resources.cpu is not None:
        requests["cpu"] = str(resources.cpu)
    if resources.memory is not None:
        requests["memory"] = limits["memory"] = str(resources.memory)
    if gpu and resources.gpu:
        limits["nvidia.com/gpu"] = str(resources.gpu)
    return {key: value for key, value in (("requests", requests), ("limits", limits)) if value}


def cores(cpu: int | str) -> Decimal:
    text = str(cpu)
    return Decimal(text[:-1]) / 1000 if text.endswith("m") else Decimal(text)


def volumes(origin: Source) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = [
        {"name": "tmp", "emptyDir": {}},
        {"name": "cache", "emptyDir": {}},
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
    ]
    if origin.fetch is not None:
        listed.append({"name": "models", "emptyDir": {}})
    if origin.claim is not None:
        claim = {"claimName": origin.claim, "readOnly": True}
        listed.append({"name": "models", "persistentVolumeClaim": claim})
    return listed


def mounts(origin: Source, models_read_only: bool) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = [
        {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108
        {"name": "cache", "mountPath": "/cache"},
        {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108
    ]
    if origin.fetch is not None:
        mount = {"name": "models", "mountPath": "/models"}
        listed.append({**mount, "readOnly": True} if models_read_only else mount)
    if origin.claim is not None:
        listed.append({"name": "models", "mountPath": MODEL_FOLDER, "subPath": origin.path, "readOnly": True})
    return listed


def confined() -> dict[str, Any]:
    """What the restricted Pod Security Standard asks of a container, and a read-only root."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def ask(path: str) -> dict[str, Any]:
    return {"httpGet": {"path": path, "port": names.HTTP_PORT}}
