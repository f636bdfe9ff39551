"""The ConfigMap with hashes of the keys by which engines recognise the router and the operator.

A hash is no secret: nobody can call an engine with it.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from engine_server.contract.base.listening import EVERY_ADDRESS_IN_PODS
from engine_server.contract.cluster import labels
from llm_operator.api.spec import LLMDeployment
from llm_operator.observed import ChildKey, Manifest, Observed, adapters_key, volumes_of
from llm_operator.plan.ownership import child
from llm_operator.plan.pod.engine_command import arguments_of
from llm_operator.plan.pod.volumes import Volume
from llm_operator.settings import Settings

FOLDER = "/etc/fairlead/keys"
ROUTER, ADMIN = "router", "admin"
# The flags of an engine whose API accepts the router's keys, and whose admin API the operator's.
ROUTER_FLAGS = {"api_key_file": f"{FOLDER}/{ROUTER}"}
ADMIN_FLAGS: dict[str, str | int] = {
    "enable_admin": True,
    "admin_host": EVERY_ADDRESS_IN_PODS,
    "admin_port": labels.ADMIN_PORT,
    "admin_key_file": f"{FOLDER}/{ADMIN}",
}
# As templates have them.
(ROUTER_ARGUMENT,) = arguments_of(ROUTER_FLAGS)
# Recorded templates may have the host in its earlier form, all of IPv4.
ADMIN_ARGUMENTS = [*arguments_of(ADMIN_FLAGS), "--admin-host=0.0.0.0"]


def key(name: str) -> ChildKey:
    return ChildKey("v1", "ConfigMap", f"{name}-keys")


def plan(deployment: LLMDeployment, observed: Observed, settings: Settings) -> Iterator[Manifest]:
    hashes = {}
    if settings.engine_keys:
        hashes[ROUTER] = observed.key_hashes.router
    if has_admin(deployment, settings):
        hashes[ADMIN] = observed.key_hashes.admin
    if hashes:
        data = {role: "".join(f"{line}\n" for line in lines) for role, lines in hashes.items()}
        yield child(deployment, key(deployment.name), settings, data=data)


def has_admin(deployment: LLMDeployment, settings: Settings) -> bool:
    """Return True if the engines have an admin API; the operator tells them the adapters there."""
    return settings.engine_keys or deployment.has_adapters


def flags(deployment: LLMDeployment, settings: Settings) -> dict[str, Any]:
    """Return the fields of an EngineCommand that make the engine accept only calls with its keys."""
    router = ROUTER_FLAGS if settings.engine_keys else {}
    return {**router, **(ADMIN_FLAGS if has_admin(deployment, settings) else {})}


def without_router_key(template: Manifest, name: str) -> Manifest:
    """Return a recorded template of the LLMDeployment `name` for engines that ask for no key of the router's.

    Unless they have adapters, the admin API and the volume of the keys go too. Nothing else changes.
    """
    pod = template["spec"]
    if not any(ROUTER_ARGUMENT in container.get("args", ()) for container in pod["containers"]):
        return template
    arguments: tuple[str, ...] = (ROUTER_ARGUMENT,)
    volumes: set[str] = set()
    if not volumes_of(pod, adapters_key(name)):
        arguments, volumes = (*arguments, *ADMIN_ARGUMENTS), volumes_of(pod, key(name))
    changed = {"volumes": [each for each in pod.get("volumes", ()) if each["name"] not in volumes]}
    for field in pod.keys() & {"containers", "initContainers"}:
        changed[field] = [without(container, arguments, volumes) for container in pod[field]]
    return {**template, "spec": {**pod, **changed}}


def without(container: Manifest, arguments: Iterable[str], volumes: set[str]) -> Manifest:
    """Return a container without the operator's `arguments` and the mounts of `volumes`."""
    kept = dict(container)
    if ROUTER_ARGUMENT in container.get("args", ()):
        kept["args"] = list(container["args"])
        for argument in arguments:
            # The first one: the user's own come last, and may be the same.
            if argument in kept["args"]:
                kept["args"].remove(argument)
    if "volumeMounts" in container:
        kept["volumeMounts"] = [each for each in container["volumeMounts"] if each["name"] not in volumes]
    return kept


def volume(name: str) -> Volume:
    """Return the volume with the keys of the LLMDeployment `name`. The kubelet updates it in running pods."""
    content: dict[str, Any] = {"configMap": {"name": key(name).name}}
    return Volume("keys", content, {"mountPath": FOLDER, "readOnly": True})
