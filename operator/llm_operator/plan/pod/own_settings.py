"""The settings of engines that are the operator's own, which a spec can give neither as flags nor as variables."""

from collections.abc import Iterator

from engine_server.contract import labels
from engine_server.contract.adapters import MODEL_VARIABLE
from llm_operator.api.rules import OWNED_FLAGS, is_owned
from llm_operator.api.schema import SpecError
from llm_operator.api.spec import LLMDeployment
from llm_operator.plan.pod import keys
from llm_operator.plan.pod.overlay import PATH
from llm_operator.settings import Settings

# Where engines ask for keys: the flags that replace the operator's or add keys, and the variables that add keys.
ROUTER_FLAGS = ("--api-key", "--api-key-file")
ROUTER_VARIABLES = ("VLLM_API_KEY",)
ADMIN_FLAGS = ("--no-enable-admin", "--admin-host", "--admin-port", "--admin-key-file")
ADMIN_VARIABLES = ("FAIRLEAD_ADMIN_KEY",)


def check(deployment: LLMDeployment, settings: Settings) -> None:
    """Raise SpecError for a flag or a variable of the spec that sets what the operator sets.

    What a profile has is not the spec's, and the names that `engine.envFrom` brings are not known.
    """
    flags: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    if settings.engine_keys:
        flags, variables = ROUTER_FLAGS, ROUTER_VARIABLES
    if keys.has_admin(deployment, settings):
        flags, variables = (*flags, *ADMIN_FLAGS), (*variables, *ADMIN_VARIABLES)
    if deployment.has_adapters:
        variables = (*variables, MODEL_VARIABLE)
    for index, argument in enumerate(deployment.spec.engine.args):
        if is_owned(argument, flags):
            raise SpecError(f"spec.engine.args[{index}]", f"the operator itself sets {', '.join(flags)}")
    own = {*map(variable_of, (*OWNED_FLAGS, *flags)), *variables}
    for path, name in given_variables(deployment):
        if name in own:
            raise SpecError(
                path, f"the variable {name} is a setting of the engine that belongs to the operator"
            )


def variable_of(flag: str) -> str:
    """Return the environment variable that an engine reads where it has no such flag."""
    return f"FAIRLEAD_{flag.removeprefix('--').replace('-', '_').upper()}"


def given_variables(deployment: LLMDeployment) -> Iterator[tuple[str, str]]:
    """Yield the path and the name of each variable that the spec gives the engine's container."""
    for index, variable in enumerate(deployment.spec.engine.env):
        yield f"spec.engine.env[{index}]", variable.name
    pod = (deployment.spec.pod_template or {}).get("spec") or {}
    for position, container in enumerate(pod.get("containers") or ()):
        if container["name"] == labels.ENGINE_CONTAINER:
            for index, given in enumerate(container.get("env") or ()):
                yield f"{PATH}.spec.containers[{position}].env[{index}]", given["name"]
