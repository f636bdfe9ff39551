"""The ConfigMap with hashes of the keys by which engines recognise the router and the operator.

A hash is no secret: nobody can call an engine with it.
"""

from collections.abc import Iterator
from typing import Any

from engine_server.contract import labels
from llm_operator.api.spec import LLMDeployment
from llm_operator.observed import ChildKey, Manifest, Observed
from llm_operator.plan.ownership import child
from llm_operator.plan.pod.volumes import Volume
from llm_operator.settings import Settings

FOLDER = "/etc/fairlead/keys"
ROUTER, ADMIN = "router", "admin"
# The arguments of an engine whose API accepts the router's keys alone, and whose admin API the operator's.
ROUTER_ARGUMENT = f"--api-key-file={FOLDER}/{ROUTER}"
ADMIN_ARGUMENTS = (
    "--enable-admin",
    "--admin-host=0.0.0.0",
    f"--admin-port={labels.ADMIN_PORT}",
    f"--admin-key-file={FOLDER}/{ADMIN}",
)


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


def arguments(deployment: LLMDeployment, settings: Settings) -> list[str]:
    router = [ROUTER_ARGUMENT] if settings.engine_keys else []
    return [*router, *(ADMIN_ARGUMENTS if has_admin(deployment, settings) else ())]


def needs_removal(template: Manifest, settings: Settings) -> bool:
    """Return True for a pod template of engines that ask for the router's key where it has none any more."""
    arguments = (argument for entry in template["spec"]["containers"] for argument in entry.get("args", ()))
    return not settings.engine_keys and ROUTER_ARGUMENT in arguments


def volume(name: str) -> Volume:
    """Return the volume with the keys of the LLMDeployment `name`. The kubelet updates it in running pods."""
    content: dict[str, Any] = {"configMap": {"name": key(name).name}}
    return Volume("keys", content, {"mountPath": FOLDER, "readOnly": True})
