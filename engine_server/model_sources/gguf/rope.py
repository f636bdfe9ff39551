"""The rope of a GGUF file as transformers' `rope_parameters`.

llama.cpp rotates the pair i of a head's dimensions at position p by p / divisor_i * base ** (-2 i / dimensions), and
multiplies cosines and sines by a factor (src/llama-context.cpp, and rope_yarn in ggml-cpu/ops.cpp). transformers'
readers of GGUF files know the base alone.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from gguf import dequantize
from numpy.typing import NDArray

from engine_server.model_sources.errors import UnusableModelError

if TYPE_CHECKING:
    from engine_server.model_sources.gguf.file import GgufFile

Floats = NDArray[np.float64]
TYPES = ("none", "linear", "yarn", "longrope")
FREQUENCIES, LONG, SHORT = "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"
# Rotations from which YaRN keeps a frequency, and up to which it divides it by the factor, within the
# trained positions.
# Files may have others, which llama.cpp reads for no architecture that transformers takes.
BETA_FAST, BETA_SLOW = 32.0, 1.0
TRAINED = "original_max_position_embeddings"
# In models with two kinds of ropes, the layers that a file's stretched one is for.
STRETCHED_LAYERS = "full_attention"
# The model types whose ropes can leave a part of a head's dimensions as they are.
PARTIAL = ("phi3", "stablelm", "nemotron", "minimax_m2", "qwen3_5_text", "qwen3_5_moe_text")


class Scaling(NamedTuple):
    """How a file stretches its rope: its keys, or llama.cpp's defaults."""

    kind: str
    factor: float
    # Positions.
    trained: int
    # Of cosines and sines.
    attention_factor: float


def set_rope(file: GgufFile, config: Any) -> None:
    """Set the rope of transformers' configuration. Raises UnusableModelError for one that it cannot have."""
    parameters = getattr(config, "rope_parameters", None)
    if not parameters:
        return
    scaling = read_scaling(file, config.max_position_embeddings)
    own = parameters.get(STRETCHED_LAYERS, parameters)
    kind = own.get("rope_type", "default")
    if kind != "default":  # Gemma 4, whose factors in the file mean the same as this type
        if scaling.factor != 1 or scaling.attention_factor != 1:
            raise UnusableModelError(
                f"{file.name} has {file.architecture}.rope.scaling.*, which {config.model_type} doesn't take: its rope "
                f"is of the type {kind}"
            )
        return
    dimensions = _rotated_dimensions(file, config, own)
    common, long, short = (_factors(file, name, dimensions) for name in (FREQUENCIES, LONG, SHORT))
    if (long is None) != (short is None):
        raise UnusableModelError(f"{file.name} has one of {LONG} and {SHORT}; it takes both or none")
    if common is not None or long is None or short is None:
        long = short = common
    own |= rope_parameters(
        scaling, own["rope_theta"], dimensions, short, long, config.max_position_embeddings
    )
    if hasattr(config, TRAINED) and TRAINED in own:
        config.original_max_position_embeddings = own[TRAINED]  # Phi-3, which prefers this one
    config.validate_rope()


def read_scaling(file: GgufFile, context: int) -> Scaling:
    """Return the keys of the file. context: positions. Raises UnusableModelError for a value that llama.cpp lacks."""
    kind = file.of_model("rope.scaling.type", str) or "linear"
    if kind not in TYPES:
        raise file.error(f"{file.architecture}.rope.scaling.type", kind, ", ".join(TYPES))
    factor = _number(file, "scaling.factor") or _number(file, "scale_linear") or 1.0
    attention = _number(file, "scaling.attn_factor")
    return Scaling(
        kind,
        1.0 if kind == "none" else factor,
        file.of_model("rope.scaling.original_context_length", int) or context,
        (1.0 if attention is None else attention)
        * (1 + 0.1 * math.log(max(1.0, factor)) if kind == "yarn" else 1),
    )


def rope_parameters(
    scaling: Scaling, base: float, dimensions: int, short: Floats | None, long: Floats | None, context: int
) -> dict[str, Any]:
    """Return the settings that replace those of a default rope.

    dimensions: those of a head that are rotated. short, long: divisors [dimensions / 2] up to `scaling.trained`
    positions and beyond them; None: 1. context: positions of the model.
    """
    if short is None and long is None and scaling.kind != "yarn" and scaling.attention_factor == 1:
        return {} if scaling.factor == 1 else {"rope_type": "linear", "factor": scaling.factor}
    stretched = divisors(scaling, base, dimensions)
    lists = [(stretched if own is None else own * stretched).tolist() for own in (short, long)]
    return {
        "rope_type": "longrope",
        "factor": scaling.factor,
        "attention_factor": scaling.attention_factor,
        "short_factor": lists[0],
        "long_factor": lists[1],
        TRAINED: context if lists[0] == lists[1] else scaling.trained,
    }


def divisors(scaling: Scaling, base: float, dimensions: int) -> Floats:
    """Return what the scaling divides each frequency by, [dimensions / 2] (YaRN, arXiv:2309.00071, section 3.2)."""
    if scaling.kind != "yarn":
        return np.full(dimensions // 2, scaling.factor)

    def pair_of(rotations: float) -> float:
        """Return the pair of dimensions that has rotated so often after the trained positions."""
        return dimensions * math.log(scaling.trained / (rotations * 2 * math.pi)) / (2 * math.log(base))

    first = max(0, math.floor(pair_of(BETA_FAST)))
    last = min(dimensions - 1, math.ceil(pair_of(BETA_SLOW)))
    kept = 1 - np.clip((np.arange(dimensions // 2) - first) / max(0.001, last - first), 0, 1)
    found: Floats = 1 / (kept + (1 - kept) / scaling.factor)
    return found


def _rotated_dimensions(file: GgufFile, config: Any, own: dict[str, Any]) -> int:
    """Return how many dimensions of a head are rotated; set the part that they are."""
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rotated = file.of_model("rope.dimension_count", int) or head
    if config.model_type in PARTIAL and 0 < rotated <= head:
        own["partial_rotary_factor"] = rotated / head
    elif rotated != head:
        raise file.error(
            f"{file.architecture}.rope.dimension_count", rotated, f"{head}, the dimensions of a head"
        )
    return rotated


def _number(file: GgufFile, name: str) -> float | None:
    value = file.of_model(f"rope.{name}", float)
    if value is not None and not 0 <= value < math.inf:
        raise file.error(f"{file.architecture}.rope.{name}", value, "a finite number from 0")
    return value


def _factors(file: GgufFile, name: str, dimensions: int) -> Floats | None:
    """Return the divisors in a tensor, None without it. Raises UnusableModelError."""
    tensor = file.tensor(name)
    if tensor is None:
        return None
    factors = dequantize(tensor.data, tensor.tensor_type).astype(np.float64)
    if factors.shape != (dimensions // 2,) or not np.isfinite(factors).all() or (factors <= 0).any():
        raise UnusableModelError(
            f"{file.name}: {name} has the shape {list(factors.shape)}, or a number that is not finite or not above 0; "
            f"it takes [{dimensions // 2}], one divisor for each 2 dimensions that are rotated"
        )
    return factors
