"""The engine's pod template."""

import math
from typing import Any, NamedTuple

import msgspec

from engine_server.contract import labels
from engine_server.contract.drain import PRE_STOP_SECONDS, termination_grace
from engine_server.contract.model_uri import LocalPath, ModelUriError, VolumeClaim, parse
from llm_operator.podtemplate import merge
from llm_operator.settings import Settings
from llm_operator.spec import LLMDeployment, LLMDeploymentSpec, Resources, SpecError

MODEL_FOLDER = "/models/model"
CACHE_ENV = {"HOME": "/cache", "XDG_CACHE_HOME": "/cache", "HF_HOME": "/cache/huggingface"}


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


def pod_template(deployment: LLMDeployment, settings: Settings) -> dict[str, Any]:
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
    people: tuple[dict[str, Any], ...] = msgspec.to_builtins(deployment.spec.engine.env)
    models = [{**mount, "readOnly": True} for mount in mounts(origin.volumes)]
    return container(labels.ENGINE_CONTAINER, image, engine_args(deployment, origin)) | {
        "env": environment(*literal(CACHE_ENV | threads(resources)), *people),
        "ports": [{"name": labels.HTTP_PORT_NAME, "containerPort": labels.ENGINE_PORT, "protocol": "TCP"}],
        "resources": compute(resources, resources.gpu),
        "volumeMounts": [*mounts(SCRATCH), *models],
        "startupProbe": {**ask("/health"), "periodSeconds": 2, "timeoutSeconds": 2, "failureThreshold": 300},
        "livenessProbe": {**ask("/health"), "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 6},
        "readinessProbe": {**ask("/ready"), "periodSeconds": 2, "timeoutSeconds": 2, "failureThreshold": 3},
        "lifecycle": {"preStop": {"sleep": {"seconds": PRE_STOP_SECONDS}}},
    }


def engine_args(deployment: LLMDeployment, origin: Source) -> list[str]:
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
    """Brings the model to where the engine reads it; the one container that sees the hub's token."""
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
    """What all containers share; as confined as the restricted Pod Security Standard asks, and more."""
    confined = {
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
        "securityContext": confined,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def environment(*variables: dict[str, Any]) -> list[dict[str, Any]]:
    """The last one of a name wins."""
    return list({variable["name"]: variable for variable in variables}.values())


def literal(values: dict[str, str]) -> list[dict[str, Any]]:
    return [{"name": name, "value": value} for name, value in values.items()]


def threads(resources: Resources) -> dict[str, str]:
    """One for each core that a CPU pod asks for, rounded up."""
    if resources.gpu or resources.cpu is None:
        return {}
    cpu = str(resources.cpu)
    cores = float(cpu.removesuffix("m")) / (1000 if cpu.endswith("m") else 1)
    return {"OMP_NUM_THREADS": str(max(1, math.ceil(cores)))}


def compute(resources: Resources, gpus: int) -> dict[str, Any]:
    asked = {"cpu": resources.cpu, "memory": resources.memory}
    most = {"memory": resources.memory, "nvidia.com/gpu": gpus or None}
    given = {"requests": asked, "limits": most}
    return {
        kind: amounts
        for kind, wanted in given.items()
        if (amounts := {name: str(amount) for name, amount in wanted.items() if amount is not None})
    }


def mounts(volumes: tuple[Volume, ...]) -> list[dict[str, Any]]:
    return [{"name": volume.name, **volume.mount} for volume in volumes]


def ask(path: str) -> dict[str, Any]:
    return {"httpGet": {"path": path, "port": labels.HTTP_PORT_NAME}}
