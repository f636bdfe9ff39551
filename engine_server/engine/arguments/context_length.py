"""The number of positions of a model: what its config says, and what its rope makes of that."""

import copy
import math
from typing import Any, NamedTuple

from engine_server.model_sources.rope_overrides import layer_types_of_ropes

# The context of a model whose config names no limit.
DEFAULT_CONTEXT = 2048
# How the types of layers begin that see a part of the context alone, so that their ropes don't limit it.
WITHIN_WINDOWS = ("sliding", "chunked")


class Positions(NamedTuple):
    """The context lengths of a model, in tokens; None for a model that has no limit."""

    # Without `max_model_len`.
    default: int | None
    # The greatest `max_model_len`.
    longest: int | None


def context_length(asked: int | None, positions: Positions, advised: int | None) -> int:
    """Return max_model_len as given, or the default (for None, and for -1 until it is lowered to the cache's size).

    advised: the longest prompt by the files of an embedding model. Raises ValueError for more than the longest.
    """
    if asked is None or asked == -1:
        return min((length for length in (positions.default, advised) if length), default=DEFAULT_CONTEXT)
    if positions.longest is not None and asked > positions.longest:
        raise ValueError(f"max_model_len is {asked}; the model's positions end at {positions.longest}")
    return asked


def positions_of(config: Any) -> Positions:
    """Return the positions of a model with transformers' configuration `config`. Raises ValueError."""
    limit: int | None = getattr(config, "max_position_embeddings", None)
    if limit is None or limit < 1:
        return Positions(None, None)  # XLNet's is -1
    ropes = [_stretched(rope, limit) for rope in _ropes(config)] or [Positions(limit, limit)]
    return min(ropes, key=lambda rope: rope.longest or limit)


def _stretched(rope: dict[str, Any], limit: int) -> Positions:
    """Return the positions of one rope in a model with `limit` as max_position_embeddings.

    - dynamic: the factor stretches the limit as a context grows;
    - yarn: the model's limit may be that before or after scaling; the factor is of the original one;
    - linear: the limit may have the factor already (Gemma 3) or not (LongChat): it is the default, and more is taken;
    - others: the limit is that after scaling.
    """
    kind = rope.get("rope_type")
    if kind not in ("dynamic", "yarn", "linear"):
        return Positions(limit, limit)
    original = _number(rope, "original_max_position_embeddings") if kind == "yarn" else limit
    is_implied = kind == "yarn" and rope.get("factor") is None
    factor = limit / original if is_implied else _number(rope, "factor")
    longest = max(limit, int(original * factor))
    return Positions(limit if kind == "linear" else longest, longest)


def _number(rope: dict[str, Any], name: str) -> float:
    """Return a positive number among a rope's parameters. Raises ValueError."""
    value = rope.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
        raise ValueError(
            f"config.json has a rope of the type {rope['rope_type']} with {name} {value!r}; it takes a positive number"
        )
    return value


def _ropes(config: Any) -> list[dict[str, Any]]:
    """Return the ropes of the layers that see the whole context, or of all, as transformers' modules read them."""
    if not getattr(config, "rope_parameters", None):
        return []
    config = copy.deepcopy(config)
    # What a rope does when it is built: an original length outside of the parameters replaces that within them.
    config.standardize_rope_params()
    by_type = config.rope_parameters
    types = layer_types_of_ropes(config, by_type)
    if not types:
        return [by_type]
    whole = [each for each in types if not each.startswith(WITHIN_WINDOWS)]
    return [by_type[each] for each in whole or types if by_type[each]]
