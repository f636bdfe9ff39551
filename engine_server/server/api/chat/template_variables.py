"""The variables of a chat template that a request may set."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict
from pydantic_core import PydanticCustomError

from engine_server.engine.conversation.chat_template import RESERVED_VARIABLES

# The documents are a field of their own.
RESERVED = RESERVED_VARIABLES | {"documents"}


# The effort of the reasoning.
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


def effort_variables(effort: Effort | None) -> dict[str, Any]:
    """Return the variables for an effort, of which "none" switches reasoning off."""
    return reasoning_variables(None if effort is None else effort != "none", effort)


def reasoning_variables(enabled: bool | None, effort: Effort | None) -> dict[str, Any]:
    """Return the variables by which templates switch reasoning, under all of their names. None: the template's own."""
    switches = {} if enabled is None else {"enable_thinking": enabled, "thinking": enabled}
    return switches if effort is None else {**switches, "reasoning_effort": effort}


class ThinkingSwitch(BaseModel):
    """The reasoning before the answer, on or off."""

    model_config = ConfigDict(strict=True)

    type: Literal["enabled", "disabled", "adaptive"]


def switched(switch: bool | ThinkingSwitch | None) -> bool | None:
    """Return whether a switch is on; None without one."""
    return switch.type != "disabled" if isinstance(switch, ThinkingSwitch) else switch


def check_variables(variables: dict[str, Any]) -> dict[str, Any]:
    """Check chat_template_kwargs for names that the server or the model sets."""
    for name in variables:
        if name in RESERVED:
            raise PydanticCustomError(
                "variables", "{name} is set by the server and can't be a variable", {"name": name}
            )
    return variables
