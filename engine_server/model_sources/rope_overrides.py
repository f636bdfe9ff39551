"""Overrides of a model's rope, which keep the parameters that they don't name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PretrainedConfig

# The settings of config.json that describe a rope: transformers' name, the older one, and a parameter outside of both.
PARAMETERS = ("rope_parameters", "rope_scaling")
THETA = "rope_theta"
NAMES = (*PARAMETERS, THETA)


def override_ropes(config: PretrainedConfig, overrides: Mapping[str, Any]) -> None:
    """Merge the overrides that are in NAMES into the rope parameters of a model's text part. Raises ValueError.

    Parameters of a model with a rope for each type of layer are given by type. null for a whole rope makes it one
    that isn't scaled.
    """
    try:
        text = config.get_text_config()
    except ValueError as error:
        raise ValueError(f"hf_overrides can't change a rope of this model: {error}") from error
    ropes: dict[str, Any] = dict(getattr(text, "rope_parameters", None) or {})
    if not ropes:
        raise ValueError(f"hf_overrides has {', '.join(overrides)}, and {type(text).__name__} has no rope")
    types = layer_types_of_ropes(text, ropes)
    for name, value in overrides.items():
        changes = _parameters(name, value)
        if not types:
            ropes |= changes
        elif unknown := changes.keys() - set(types):
            raise ValueError(
                f"hf_overrides has {', '.join(sorted(unknown))} in {name}; the model has a rope for each of "
                f"{', '.join(types)}, and takes parameters by these names"
            )
        else:
            ropes |= {each: (ropes[each] or {}) | _parameters(each, changes[each]) for each in changes}
    text.rope_parameters = ropes
    try:
        text.standardize_rope_params()
        text.validate_rope()
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"hf_overrides makes a rope that transformers refuses: {error}") from error


def layer_types_of_ropes(config: PretrainedConfig, ropes: Mapping[str, Any]) -> list[str]:
    """Return the types of layers for which rope parameters hold a rope each, or none if they are those of one rope.

    It is what PretrainedConfig.nested_rope_parameter_keys returns, which transformers has from 5.18 on.
    """
    labels = getattr(config, "_rope_type_labels", None) or getattr(config, "layer_types", None) or ()
    return [name for name in ropes if name in labels]


def _parameters(name: str, value: Any) -> dict[str, Any]:
    """Return an override as rope parameters by transformers' names. Raises ValueError."""
    if name == THETA:
        return {THETA: value}
    if value is None:
        return {"rope_type": "default"}
    if not isinstance(value, dict):
        raise ValueError(f"hf_overrides has {value!r} as {name}; it takes an object with a rope's parameters")
    older = {"rope_type": value["type"]} if "type" in value and "rope_type" not in value else {}
    return value | older
