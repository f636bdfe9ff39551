"""The settings of engines that are the operator's own, which a spec can give neither as flags nor as variables."""

from collections.abc import Iterator

from engine_server.contract.cluster import labels
from engine_server.contract.cluster.adapters import MODEL_VARIABLE
from llm_operator.api.schema import SpecError
from llm_operator.api.spec import LLMDeployment
from llm_operator.plan.pod import keys
from llm_operator.plan.pod.engine_command import FLAGS, flag_of, setting_of
from llm_operator.plan.pod.overlay import PATH
from llm_operator.settings import Settings

# By which routers, probes and the operator would not reach an engine any more; the operator gives none of them.
LEFT_OUT = ("root_path", "ssl_certfile", "ssl_keyfile", "ssl_ca_certs", "ssl_cert_reqs")
# Given by the operator where there are adapters, and by a spec if it likes.
SHARED = ("enable_lora", "max_loras", "max_cpu_loras")
BELONGS = "is a setting of the engine that belongs to the operator"
# The variable that adds a key of the admin API.
ADMIN_VARIABLE = "FAIRLEAD_ADMIN_KEY"


def check(deployment: LLMDeployment, settings: Settings) -> None:
    """Raise SpecError for a flag or a variable of the spec that sets what the operator sets.

    What a profile has is not the spec's, and the names that `engine.envFrom` brings are not known.
    """
    own = own_settings(settings)
    for index, argument in enumerate(deployment.spec.engine.args):
        name = setting_of(argument)
        if name in own:
            raise SpecError(f"spec.engine.args[{index}]", f"the flag {flag_of(name)} {BELONGS}")
    variables = set(map(variable_of, own))
    if keys.has_admin(deployment, settings):
        variables.add(ADMIN_VARIABLE)
    if deployment.has_adapters:
        variables.add(MODEL_VARIABLE)
    for path, variable in given_variables(deployment):
        if variable in variables:
            raise SpecError(path, f"the variable {variable} {BELONGS}")


def own_settings(settings: Settings) -> set[str]:
    """Return the names of the engine's settings that a spec cannot give. Where there are no keys, a file of keys is."""
    own = {*FLAGS, *LEFT_OUT}.difference(SHARED)
    return own if settings.engine_keys else own.difference(keys.ROUTER_FLAGS)


def variable_of(name: str) -> str:
    """Return the environment variable that an engine reads where it has no flag for a setting."""
    return f"FAIRLEAD_{name.upper()}"


def given_variables(deployment: LLMDeployment) -> Iterator[tuple[str, str]]:
    """Yield the path and the name of each variable that the spec gives the engine's container."""
    for index, variable in enumerate(deployment.spec.engine.env):
        yield f"spec.engine.env[{index}]", variable.name
    pod = (deployment.spec.pod_template or {}).get("spec") or {}
    for position, container in enumerate(pod.get("containers") or ()):
        if container["name"] == labels.ENGINE_CONTAINER:
            for index, given in enumerate(container.get("env") or ()):
                yield f"{PATH}.spec.containers[{position}].env[{index}]", given["name"]
