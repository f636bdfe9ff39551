"""A planned engine pod as a local process: the same command, but for its socket, its paths and its threads."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from llm_operator.api.schema import SpecError
from llm_operator.api.spec import LLMDeployment
from llm_operator.observed import Observed, workload_key
from llm_operator.plan.plan import plan
from llm_operator.plan.pod.engine_command import EngineCommand
from llm_operator.plan.pod.overlay import PATH
from llm_operator.plan.pod.pods import CACHE_ENV, engine_command
from llm_operator.plan.pod.volumes import source
from llm_operator.settings import Settings

from engine_server.contract.cluster import labels
from engine_server.contract.cluster.adapters import WantedAdapter, WantedAdapters
from engine_server.contract.cluster.api import DEFAULT_NAMESPACE
from engine_server.contract.cluster.model_uri import parse
from engine_server.contract.cluster.sources.claim import VolumeClaim

THREADS = "OMP_NUM_THREADS"
GPUS = "CUDA_VISIBLE_DEVICES"


class Fetch(NamedTuple):
    """The work of a pod's init container."""

    uri: str
    environment: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Pod:
    """The subset of a planned pod that is needed to run it locally."""

    deployment: LLMDeployment
    command: EngineCommand
    environment: dict[str, str]
    fetch: Fetch | None
    gpus: int
    # Seconds between SIGTERM and SIGKILL.
    grace: float

    @property
    def adapters(self) -> WantedAdapters:
        return WantedAdapters(
            [WantedAdapter(each.name, each.uri) for each in self.deployment.spec.adapters or ()]
        )

    @property
    def replicas(self) -> int:
        return self.deployment.spec.replicas

    @property
    def label(self) -> str:
        """The name in log lines."""
        namespace = "" if self.deployment.namespace == DEFAULT_NAMESPACE else f"{self.deployment.namespace}/"
        return f"{namespace}{self.deployment.name}"


def pod(deployment: LLMDeployment) -> Pod:
    """Return the pod that the operator would create. Raises SpecError for what only a cluster has."""
    uri = deployment.spec.model.uri
    # No pod is created: its confinement is for the cluster to check.
    settings = Settings(engine_image="", pod_security="any", allow_service_account=True)
    # The hub's token comes from this machine's environment, its cache keeps models, and profiles are for nodes.
    model = msgspec.structs.replace(deployment.spec.model, secret_ref=None, cache=None)
    local = msgspec.structs.replace(deployment.spec, model=model, profile=None)
    planned = msgspec.structs.replace(deployment, spec=local)
    goal = plan(planned, Observed(), settings)
    if isinstance(parse(uri), VolumeClaim):
        raise SpecError("spec.model.uri", f"{uri} is a volume claim, which only a cluster has")
    for adapter in deployment.spec.adapters or ():
        if isinstance(parse(adapter.uri), VolumeClaim):
            reason = f"{adapter.uri} is on a volume claim, which only a cluster has"
            raise SpecError("spec.adapters", reason)
    if deployment.spec.engine.env_from:
        raise SpecError("spec.engine.envFrom", "only a cluster has ConfigMaps and Secrets; use engine.env")
    if deployment.spec.engine.files:
        reason = "only pods have files mounted; refer to files of this machine in engine.args"
        raise SpecError("spec.engine.files", reason)
    spec = goal.apply[workload_key(deployment.name)]["spec"]["template"]["spec"]
    containers = {each["name"]: each for each in (*spec["containers"], *spec.get("initContainers", ()))}
    engine, fetch = containers[labels.ENGINE_CONTAINER], containers.get(labels.MODEL_CONTAINER)
    command = engine_command(planned, settings, source(model))
    if engine["args"] != command.arguments():
        raise SpecError(PATH, "the arguments of the container engine are replaced, which only pods can run")
    return Pod(
        deployment=deployment,
        command=command,
        environment=variables(engine),
        fetch=Fetch(fetch["args"][1], tuple(variables(fetch).items())) if fetch else None,
        gpus=deployment.spec.resources.gpus,
        grace=float(spec["terminationGracePeriodSeconds"]),
    )


def variables(container: dict[str, Any]) -> dict[str, str]:
    """Return a container's variables, but for the places of its caches."""
    return {entry["name"]: value(entry) for entry in container["env"] if entry["name"] not in CACHE_ENV}


def value(variable: dict[str, Any]) -> str:
    """Return the value of a container's variable. Raises SpecError if it must be looked up."""
    if "valueFrom" in variable:
        reason = f"{variable['name']} has a valueFrom, which only a cluster can look up"
        raise SpecError("spec.engine.env", reason)
    return str(variable.get("value", ""))


def local_command(
    pod: Pod, socket: Path, model: str | None, gpus: Sequence[str], adapters_file: Path
) -> EngineCommand:
    """Return the pod's command with a Unix socket to listen on, and the folder `model`, if any.

    There is no admin API: the adapters stay as they are in `adapters_file`.
    """
    planned = pod.command
    return replace(
        planned,
        enable_admin=False,
        admin_host=None,
        admin_port=None,
        admin_key_file=None,
        host=None,
        port=None,
        uds=str(socket),
        model=model or planned.model,
        # A model is split over GPUs alone.
        tensor_parallel_size=planned.tensor_parallel_size if gpus else None,
        adapters_file=str(adapters_file) if planned.adapters_file else None,
    )


def environment(pod: Pod, threads: int, gpus: Sequence[str]) -> dict[str, str]:
    """Return the container's variables with the replica's share of the machine."""
    return pod.environment | {THREADS: str(threads), GPUS: ",".join(gpus)}
