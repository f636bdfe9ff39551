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
# The arguments of an engine that accepts these keys alone.
ARGUMENTS = (
    f"--api-key-file={FOLDER}/{ROUTER}",
    "--enable-admin",
    "--admin-host=0.0.0.0",
    f"--admin-port={labels.ADMIN_PORT}",
    f"--admin-key-file={FOLDER}/{ADMIN}",
)


def key(name: str) -> ChildKey:
    return ChildKey("v1", "ConfigMap", f"{name}-keys")


def plan(deployment: LLMDeployment, observed: Observed, settings: Settings) -> Iterator[Manifest]:
    if settings.engine_keys:
        hashes = observed.key_hashes
        data = {ROUTER: "".join(f"{line}\n" for line in hashes.router)}
        data[ADMIN] = "".join(f"{line}\n" for line in hashes.admin)
        yield child(deployment, key(deployment.name), settings, data=data)


def needs_removal(template: Manifest, name: str, settings: Settings) -> bool:
    """Return True for a pod template of engines that ask for keys where nobody has keys any more."""
    mounted = (entry.get("configMap", {}).get("name") for entry in template["spec"].get("volumes", ()))
    return not settings.engine_keys and key(name).name in mounted


def volume(name: str) -> Volume:
    """Return the volume with the keys of the LLMDeployment `name`. The kubelet updates it in running pods."""
    content: dict[str, Any] = {"configMap": {"name": key(name).name}}
    return Volume("keys", content, {"mountPath": FOLDER, "readOnly": True})
