"""The weights of a GGUF file, which are read one parameter after another: one is dequantised at a time.

transformers' readers of the architectures say which tensors make a parameter, and dequantise it. Our codes are compared
with that: they are dropped if they differ, as where an architecture stores a matrix in another order.
"""

import logging
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gguf import dequantize
from numpy.typing import NDArray
from torch import Tensor
from transformers import modeling_gguf_pytorch_utils as readers

from engine_server.model_sources.errors import UnusableModelError
from engine_server.model_sources.gguf.blocks import KINDS, Integers, integers, joined

if TYPE_CHECKING:
    from gguf import ReaderTensor

    from engine_server.model_sources.gguf.file import GgufFile

Floats = NDArray[np.float32]
FLOATS = ("F32", "F16", "BF16")
# The largest difference from a weight: relative to it, and to the largest of its matrix.
RELATIVE, ABSOLUTE = 2.0**-7, 2.0**-8
# Weights that are compared at once.
PIECE = 1 << 22
log = logging.getLogger(__name__)


def read_weights(file: "GgufFile", model: Any, dense: bool) -> tuple[dict[str, Tensor], bool]:
    """Return weights by the names of the model's parameters, and True if any stays quantised.

    model: on the meta device. dense: dequantise all. Raises UnusableModelError for scales that are NaN or infinite, for
    parameters that the file doesn't have, and for those of another shape.
    """
    weights: dict[str, Tensor] = {}
    heads = heads_of(model)
    kept: Counter[str] = Counter()
    dequantised: Counter[str] = Counter()
    tied, shapes = model.all_tied_weights_keys, {key: one.shape for key, one in model.state_dict().items()}
    for tensors, parameters in parameters_of(file, model):
        for key in parameters.keys() - tied:
            if parameters[key].shape != shapes[key]:
                raise UnusableModelError(
                    f"{file.name}: {key} has the shape {list(parameters[key].shape)}; its metadata expect "
                    f"{list(shapes[key])}"
                )
            kinds = Counter(
                tensor.tensor_type.name for tensor in tensors if tensor.tensor_type.name not in FLOATS
            )
            found = None if dense else quantised(tensors, parameters[key].numpy(), heads)
            if found is None:
                if kinds and not parameters[key].isfinite().all():
                    raise not_finite(tensors)
                weights[key] = parameters[key].to(torch.bfloat16)
                dequantised += kinds
            else:
                weights |= stored(key, found)
                kept += kinds
    present = weights.keys() | {key.rpartition("_int")[0] for key in weights}
    missing = {name for name, _ in model.named_parameters()} - present - tied.keys()
    if missing:
        raise UnusableModelError(f"{file.name} has no weights for {', '.join(sorted(missing)[:3])}")
    if dequantised:
        log.info("%s: dequantised to bfloat16: %s", file.name, listed(dequantised))
    if kept:
        log.info("%s: kept quantised: %s", file.name, listed(kept))
    return weights, bool(kept)


def parameters_of(file: "GgufFile", model: Any) -> Iterator[tuple[list["ReaderTensor"], dict[str, Tensor]]]:
    """Yield the tensors of each parameter, and the parameter in float32 by its name."""
    processor: Any = readers.TENSOR_PROCESSORS.get(file.architecture, readers.TensorProcessor)
    processor = processor(config=model.config.to_dict())
    names = readers.get_gguf_hf_weights_map(model, processor)
    parts: dict[str, list[ReaderTensor]] = defaultdict(list)
    # The gate and up of experts are one parameter, in this order.
    for tensor in sorted(file.tensors, key=lambda tensor: tensor.name):
        parts[names.get(tensor.name.removesuffix(".weight"), tensor.name)].append(tensor)
    for tensors in parts.values():
        found: dict[str, Tensor] = {}
        for tensor in tensors:
            done = processor.process(
                weights=dequantize(tensor.data, tensor.tensor_type),
                name=tensor.name,
                tensor_key_mapping=names,
                parsed_parameters={"tensors": found},
            )
            if done.name in names:
                found[names[done.name]] = torch.from_numpy(np.require(done.weights, requirements=["C", "W"]))
        yield tensors, found


def heads_of(model: Any) -> list[int]:
    """Return the numbers of heads by which an architecture may permute the rows of queries and keys."""
    text = model.config.get_text_config()
    found = (getattr(text, name, None) for name in ("num_attention_heads", "num_key_value_heads"))
    return [heads for heads in found if heads]


def quantised(tensors: Sequence["ReaderTensor"], weight: Floats, heads: Sequence[int]) -> Integers | None:
    """Return the codes of a parameter, its outputs in the order of `weight`; None if they are not the same weights.

    tensors: those that make the parameter, one after another along its outputs. weight: float32 [..., out, in].
    """
    found: list[Integers] = []
    first = 0
    for tensor in tensors:
        kind = tensor.tensor_type.name
        if kind not in KINDS or tensor.data.ndim != weight.ndim:
            return None
        codes = integers(kind, np.asarray(tensor.data))
        for factors in (codes.scales, codes.minima):
            if factors is not None and not np.isfinite(factors.astype(np.float32)).all():
                raise not_finite([tensor])
        last = first + codes.codes.shape[-2]
        ordered = in_order(codes, weight[..., first:last, :], heads)
        if ordered is None:
            return None
        found.append(ordered)
        first = last
    return joined(found) if first == weight.shape[-2] else None


def in_order(found: Integers, expected: Floats, heads: Sequence[int]) -> Integers | None:
    """Return the codes with their outputs in the order of `expected`; None if there is none.

    The rows of queries and keys of some architectures are permuted in the file: the two halves of each head that a rope
    rotates together alternate there.
    """
    if same(found, expected):
        return found
    rows = len(expected)
    for count in heads:
        if expected.ndim == 2 and rows % (2 * count) == 0:
            order = np.arange(rows).reshape(count, -1, 2).swapaxes(1, 2).reshape(-1)
            if same(found.rows(order), expected):
                return found.rows(order)
    return None


def same(ours: Integers, expected: Floats) -> bool:
    """Return True if weights differ by the rounding of their scales at most."""
    if ours.codes.shape != expected.shape:
        return False
    slack = ABSOLUTE * max(expected.max(initial=0), -expected.min(initial=0))
    step = max(1, PIECE // max(1, expected[:1].size))
    return all(
        np.allclose(
            ours.rows(slice(first, first + step)).dense(), expected[first : first + step], RELATIVE, slack
        )
        for first in range(0, len(expected), step)
    )


def stored(name: str, found: Integers) -> dict[str, Tensor]:
    """Return the tensors as which a parameter is stored."""
    parts = {f"int{found.bits}": found.packed, "scales": found.scales, "minima": found.minima}
    return {
        f"{name}_{part}": torch.from_numpy(np.ascontiguousarray(values))
        for part, values in parts.items()
        if values is not None
    }


def not_finite(tensors: Sequence["ReaderTensor"]) -> UnusableModelError:
    names = ", ".join(tensor.name for tensor in tensors)
    return UnusableModelError(f"the scales of {names} are NaN or infinite")


def listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count} tensors of {kind}" for kind, count in sorted(counts.items()))
