"""compressed-tensors, as LLM Compressor stores integer weights of 4 and 8 bits, float8 and float4 weights.

pack-quantized: weight_packed: int32 [out, in * bits / 32], weight_scale: [out, groups], weight_zero_point: int32
[out * bits / 32, groups] if not symmetric, weight_shape: int64 [out, in], weight_g_idx: int32 [in] if groups are not
contiguous; codes and zero points are stored plus 2 ** (bits - 1). int-quantized and float-quantized: weight in int8 or
float8, weight_scale: per tensor, output, group or block. nvfp4-pack-quantized: weight_packed, weight_scale,
weight_global_scale, see nvfp4.py.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from engine_server.contract.base.quoting import quote
from engine_server.model_sources.settings_tables import SCHEME, UNUSED_ARGUMENTS, WEIGHTS
from engine_server.modeling.formats.checkpoints.codes import WORD, integer_form, integer_format, unpacked
from engine_server.modeling.formats.checkpoints.float8 import UNUSED, float8_weights
from engine_server.modeling.formats.checkpoints.nvfp4 import nvfp4_weight
from engine_server.modeling.formats.checkpoints.scheme import Scheme, check_group, taken
from engine_server.modeling.formats.checkpoints.stored import FLOATS, StoredTensor, StoredWeight
from engine_server.modeling.formats.quantized import QuantizedFormat

# The locations of transforms that are applied to weights before they are stored.
WEIGHT_TRANSFORMS = "weight_input", "weight_output"
FORMS = (
    "pack-quantized", "int-quantized", "float-quantized", "nvfp4-pack-quantized", "naive-quantized", "mixed-precision",
    "dense",
)  # fmt: skip
# The types of numbers whose codes are packed, by form.
PACKED = {"pack-quantized": "int", "nvfp4-pack-quantized": "float"}


class CompressedTensors(Scheme):
    def __init__(self, settings: Mapping[str, Any]) -> None:
        named_groups = settings.get("config_groups") or {}
        for name, group in named_groups.items():
            check_group_settings(
                group, f"config_groups.{name}", group.get("format") or settings.get("format")
            )
        UNUSED_ARGUMENTS.check(settings.get("kv_cache_scheme") or {}, "kv_cache_scheme")
        check_transforms(settings.get("transform_config") or {})
        groups = list(named_groups.values())
        forms = {str(settings.get("format"))} | {
            str(group["format"]) for group in groups if group.get("format")
        }
        if unknown := forms - set(FORMS):
            raise ValueError(
                f"the compressed-tensors form {', '.join(sorted(unknown))} is not supported; "
                f"known are {', '.join(FORMS)}"
            )
        sparsity = (settings.get("sparsity_config") or {}).get("format", "dense")
        if sparsity != "dense":
            raise ValueError(f"the compressed-tensors form {sparsity} is not supported; known is dense")
        weights = [group["weights"] for group in groups if group.get("weights")]
        self.bits = {int(one["num_bits"]) for one in weights}
        if unsupported := self.bits - {4, 8}:
            raise ValueError(
                f"compressed-tensors with {sorted(unsupported)} bits are not supported; known are 4 and 8"
            )
        sizes = {one.get("group_size") for one in weights}
        # The group size and the symmetry of all weights; None: they differ, or the config doesn't say.
        self.group = sizes.pop() if len(sizes) == 1 else None
        symmetries = {one.get("symmetric") for one in weights}
        self.symmetric = symmetries.pop() if len(symmetries) == 1 else None
        blocks = [one["block_structure"] for one in weights if one.get("block_structure")]
        if len({tuple(block) for block in blocks}) > 1:
            raise ValueError(f"compressed-tensors with blocks of several sizes, {blocks}, are not supported")
        self.block = list(blocks[0]) if blocks else None

    def weights(self, parts: dict[str, StoredTensor]) -> dict[str, StoredWeight]:
        for name in UNUSED:
            parts.pop(name, None)
        packed = parts.get("weight_packed")
        if packed is not None and packed.dtype == "U8":
            return self._float4(parts)
        if packed is not None:
            return self._packed(parts)
        weight = parts.get("weight")
        if weight is not None and weight.dtype == "I8":
            return self._int8(parts)
        if weight is not None and weight.dtype.startswith("F8"):
            scales = parts.get("weight_scale")
            per_block = scales is not None and len(scales.shape) == 2 and scales.shape[1] > 1
            return float8_weights(parts, self.block if per_block else None)
        return {}

    def _packed(self, parts: dict[str, StoredTensor]) -> dict[str, StoredWeight]:
        codes = parts.pop("weight_packed")
        scales, shape = (taken(parts, name, codes.name) for name in ("weight_scale", "weight_shape"))
        zeros, groups = parts.pop("weight_zero_point", None), parts.pop("weight_g_idx", None)
        codes.check_dimensions(2)
        shape.check(["I64", "I32"], (2,))
        outputs, inputs = shape.read().tolist()
        bits = next((bits for bits in self.bits if codes.shape[-1] == -(-inputs * bits // WORD)), None)
        if bits is None:
            raise ValueError(
                f"{codes.name} has the shape {list(codes.shape)}, which is not that of {[outputs, inputs]} codes of "
                f"{' or '.join(map(str, sorted(self.bits)))} bits"
            )
        codes.check(["I32"], (outputs, -(-inputs * bits // WORD)))
        check_scales(scales, outputs, inputs)
        check_group(self.group, inputs, scales, scales.shape[1])
        if zeros is None and self.symmetric is False:
            raise ValueError(
                f"{codes.name} has no weight_zero_point beside it; its config says it is not symmetric"
            )
        if zeros is not None:
            zeros.check(["I32"], (-(-outputs * bits // WORD), scales.shape[1]))
        if groups is not None:
            groups.check(["I32", "I64"], (inputs,))
        used = [part for part in (codes, scales, zeros, groups) if part is not None]
        build = partial(_build_packed, codes, scales, zeros, groups, bits, inputs)
        form = integer_form(bits, inputs // scales.shape[1])
        return {"weight": StoredWeight((outputs, inputs), used, form, build)}

    def _float4(self, parts: dict[str, StoredTensor]) -> dict[str, StoredWeight]:
        codes = parts.pop("weight_packed")
        if self.symmetric is False:
            raise ValueError(f"{codes.name} is packed float4; its config says it is not symmetric")
        scales, divisor = (taken(parts, name, codes.name) for name in ("weight_scale", "weight_global_scale"))
        return {"weight": nvfp4_weight(codes, scales, divisor, torch.reciprocal)}

    def _int8(self, parts: dict[str, StoredTensor]) -> dict[str, StoredWeight]:
        codes = parts.pop("weight")
        scales = taken(parts, "weight_scale", codes.name)
        zeros = parts.pop("weight_zero_point", None)
        codes.check_dimensions(2)
        outputs, inputs = codes.shape
        groups = 1
        if scales.shape not in ((), (1,)):
            check_scales(scales, outputs, inputs)
            groups = scales.shape[1]
        if zeros is not None:
            zeros.check(["I8"], scales.shape)
        used = [part for part in (codes, scales, zeros) if part is not None]
        build = partial(_build_int8, codes, scales, zeros)
        return {"weight": StoredWeight((outputs, inputs), used, integer_form(8, inputs // groups), build)}


def check_group_settings(group: Mapping[str, Any], place: str, form: str | None) -> None:
    """Raise ValueError for settings of a group that the library doesn't know or that are not supported.

    form: that in which its weights are stored.
    """
    SCHEME.check(group, place)
    weights = group.get("weights") or {}
    WEIGHTS.check(weights, f"{place}.weights")
    kind = weights.get("type", "int")
    if form in PACKED and weights and kind != PACKED[form]:
        raise ValueError(f"{place}.weights has type {quote(kind)}; codes in {form} are {PACKED[form]}")
    for name in ("input_activations", "output_activations"):
        UNUSED_ARGUMENTS.check(group.get(name) or {}, f"{place}.{name}")


def check_transforms(settings: Mapping[str, Any]) -> None:
    """Raise ValueError for transforms of anything but weights, of which a checkpoint has the result."""
    for name, scheme in (settings.get("config_groups") or {}).items():
        for one in scheme["apply"]:
            if one["location"] not in WEIGHT_TRANSFORMS:
                raise ValueError(
                    f"transform_config.config_groups.{name} has location {quote(one['location'])}, which is not "
                    f"supported; it takes {' and '.join(WEIGHT_TRANSFORMS)}"
                )


def check_scales(scales: StoredTensor, outputs: int, inputs: int) -> None:
    """Raise ValueError if scales are not [outputs, groups] with groups of equal size."""
    groups = scales.shape[-1] if len(scales.shape) == 2 else 0
    if scales.dtype not in FLOATS or groups == 0 or scales.shape[0] != outputs or inputs % groups:
        raise ValueError(
            f"{scales.name} is {scales.dtype} {list(scales.shape)}; "
            f"expected is a float of [{outputs}, a divisor of {inputs}]"
        )


def _build_packed(
    codes: StoredTensor,
    scales: StoredTensor,
    zeros: StoredTensor | None,
    groups: StoredTensor | None,
    bits: int,
    inputs: int,
    dtype: torch.dtype,
) -> QuantizedFormat:
    factors = scales.finite()
    return integer_format(
        unpacked(codes.read(), bits)[:, :inputs],
        factors,
        None if zeros is None else unpacked(zeros.read().t(), bits).t()[: len(factors)],
        bits,
        None if groups is None or (index := groups.read()).min() < 0 else index,
        dtype,
    )


def _build_int8(
    codes: StoredTensor, scales: StoredTensor, zeros: StoredTensor | None, dtype: torch.dtype
) -> QuantizedFormat:
    half = 128
    count = codes.shape[0]
    factors = scales.finite()
    points = None if zeros is None else zeros.read().int() + half
    if factors.ndim < 2:
        factors = factors.view(1, 1).expand(count, 1)
        points = None if points is None else points.view(1, 1).expand(count, 1)
    unsigned = (codes.read().int() + half).to(torch.uint8)
    return integer_format(unsigned, factors, points, 8, None, dtype)
