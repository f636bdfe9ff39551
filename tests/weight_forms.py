"""Random weights in every form in which checkpoints hold quantised ones."""

import torch
from torch import Tensor

from engine_server.modeling.formats.codecs import E2M1, E4M3, E8M0, FLOAT, INT4, INT8
from engine_server.modeling.formats.grouped import Form, GroupedFormat

MINIMA = "minima"
# By name; with minima beside the scales where it says so. Groups are such that two ranks share the inputs of 64.
FORMS = {
    "int4": Form(INT4, FLOAT, 32),
    "int4 with minima": Form(INT4, FLOAT, 16),
    "int8": Form(INT8, FLOAT, 64),
    "int8 with minima": Form(INT8, FLOAT, 32),
    "float8": Form(E4M3, FLOAT, 64),
    "float8 in groups": Form(E4M3, FLOAT, 24),
    "mxfp4": Form(E2M1, E8M0, 32),
    "nvfp4": Form(E2M1, E4M3, 16),
}


def random_weight(
    name: str, outputs: int, inputs: int, dtype: torch.dtype, bias: bool = False, seed: int = 0
) -> GroupedFormat:
    """Return a weight [outputs, inputs] of numbers of about 1, in groups of different magnitudes."""
    form, generator = FORMS[name], torch.Generator().manual_seed(seed)
    shape = outputs, -(-inputs // form.group)
    codes = torch.randint(
        0, 256, (outputs, inputs * form.codes.bits // 8), dtype=torch.uint8, generator=generator
    )
    if form.codes is E4M3:
        codes[codes & 0x7F > 0x40] = 0x35  # neither NaN nor much more than 1
    spread = torch.rand(shape, generator=generator) + 0.5
    tensors = {"weight": codes, "scales": spread}
    if form.codes in (INT4, INT8):
        tensors["scales"] = spread / (1 << form.codes.bits - 1)
    if MINIMA in name:
        tensors[MINIMA] = -spread * torch.rand(shape, generator=generator)
    if form.scales is E8M0:
        tensors["scales"] = torch.randint(122, 127, shape, dtype=torch.uint8, generator=generator)
    if form.scales is E4M3:
        tensors["scales"] = in_float8(256 * spread)
        tensors["factors"] = torch.full((outputs, 1), (1 + torch.rand((), generator=generator)).item() / 2688)
    if bias:
        tensors["bias"] = torch.randn(outputs, generator=generator).to(dtype)
    return GroupedFormat.of(form, tensors, dtype)


def in_float8(numbers: Tensor) -> Tensor:
    """Return the codes of E4M3 that are nearest to numbers, none of which is greater than 448 then."""
    return numbers.clamp(max=448).to(torch.float8_e4m3fn).view(torch.uint8)
