"""The refusal of arguments by which a mixer would ask for another recurrence."""

from typing import Any

from engine_server.modeling.attention.interface import UnsupportedModelError

# Options that can't change the result: sequences are told apart by the step's inputs, and others ask for more outputs.
HARMLESS = (
    "position_ids",
    "use_cache",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "return_dict",
)


def refuse_unknown(name: str, options: dict[str, Any]) -> None:
    """Raise UnsupportedModelError for an option that might change the result. name: of the recurrence."""
    for option, value in options.items():
        if value is not None and option not in HARMLESS:
            raise UnsupportedModelError(f"{name} is given the option {option}, which is not supported")
