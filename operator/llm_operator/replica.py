"""The plan's engine container as a process of this machine: but for port, paths and threads, the same."""

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engine_server.contract import labels
from engine_server.contract.api import DEFAULT_NAMESPACE
from engine_server.contract.model_uri import VolumeClaim, parse
from llm_operator.observed import Observed
from llm_operator.plan import plan
from llm_operator.pods import CACHE_ENV, MODEL_FOLDER
from llm_operator.settings import Settings
from llm_operator.spec import LLMDeployment, SpecError

HOST = "127.0.0.1"
THREADS = "OMP_NUM_THREADS"
GPUS = "CUDA_VISIBLE_DEVICES"
SHARDING = "--tensor-parallel-size="  # over GPUs: left out where there is none


@dataclass(frozen=True, slots=True)
class Pod:
    """The subset of a planned pod that is needed to run it locally."""

    deployment: LLMDeployment
    arguments: tuple[str, ...]
    environment: dict[str, str]
    # The URI that its init container fetches.
    fetch: str | None
    gpus: int
    grace: float

    @property
    def label(self) -> str:
        namespace = "" if self.deployment.namespace == DEFAULT_NAMESPACE else f"{self.deployment.namespace}/"
        return f"{namespace}{self.deployment.name}"


def pod(deployment: LLMDeployment) -> Pod:
    """Return the pod that the operator would create. Raises SpecError for what only a cluster has."""
    uri = deployment.spec.model.uri
    template = plan(deployment, Observed(), Settings(engine_image="")).child("Deployment")["spec"]["template"]
    if isinstance(parse(uri), VolumeClaim):
        raise SpecError("spec.model.uri", f"{uri} is a volume claim, which only a cluster has")
    spec = template["spec"]
    containers = {each["name"]: each for each in (*spec["containers"], *spec.get("initContainers", ()))}
    engine, fetch = containers[labels.ENGINE_CONTAINER], containers.get(labels.MODEL_CONTAINER)
    return Pod(
        deployment=deployment,
        arguments=tuple(engine["args"]),
        environment={
            entry["name"]: value(entry) for entry in engine["env"] if entry["name"] not in CACHE_ENV
        },
        fetch=fetch["args"][1] if fetch else None,
        gpus=deployment.spec.resources.gpu,
        grace=float(spec["terminationGracePeriodSeconds"]),
    )


def value(variable: dict[str, Any]) -> str:
    if "valueFrom" in variable:
        missing = f"{variable['name']} has a valueFrom, which only a cluster can look up"
        raise SpecError("spec.engine.env", missing)
    return str(variable.get("value", ""))


def arguments(pod: Pod, port: int, model: str | None, gpus: Sequence[str]) -> tuple[str, ...]:
    """The container's arguments, listening on `port` of this machine alone, the model read from `model`."""
    here = {"--host=0.0.0.0": f"--host={HOST}", f"--port={labels.ENGINE_PORT}": f"--port={port}"}
    if model is not None:
        here[MODEL_FOLDER] = model
    kept = [argument for argument in pod.arguments if gpus or not argument.startswith(SHARDING)]
    return tuple(here.get(argument, argument) for argument in kept)


def environment(pod: Pod, threads: int, gpus: Sequence[str]) -> dict[str, str]:
    """The container's variables, with this replica's share of the machine."""
    return pod.environment | {THREADS: str(threads), GPUS: ",".join(gpus)}


def visible_gpus(chosen: str | None) -> list[str]:
    """The GPUs that CUDA would use, where `chosen` is CUDA_VISIBLE_DEVICES; asks the driver, not torch."""
    if chosen is not None:
        return [gpu for gpu in chosen.split(",") if gpu and gpu != "-1"]
    if (smi := shutil.which("nvidia-smi")) is None:
        return []
    listed = subprocess.run([smi, "--list-gpus"], capture_output=True, text=True).stdout
    return [str(index) for index, line in enumerate(listed.splitlines()) if line.startswith("GPU ")]
