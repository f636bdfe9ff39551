"""Numbers in few bits: the codes of quantised weights, and the scales of their groups."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

# The numbers of E2M1's codes 0 to 7. Codes from 8 on are these numbers negated.
NUMBERS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
# The exponent of 2 ** 0 as E8M0 stores it.
BIAS = 127


@dataclass(frozen=True)
class Codec:
    """A form of numbers."""

    name: str
    bits: int
    # Returns numbers in float32: uint8 [..., n * bits / 8] to [..., n]; of FLOAT: floating [..., n].
    decoded: Callable[[Tensor], Tensor]
    # The code of 0 in weights that have no minima.
    zero: int = 0

    def __str__(self) -> str:
        return self.name


def packed_codes(codes: Tensor) -> Tensor:
    """Return two 4-bit codes in each byte, the even one in the low half: uint8 [..., n] to [..., n / 2]."""
    return codes[..., ::2] | codes[..., 1::2] << 4


def split_codes(codes: Tensor) -> Tensor:
    """Return each 4-bit code in a byte of its own: uint8 [..., n / 2] to [..., n]."""
    return torch.stack((codes & 15, codes >> 4), -1).flatten(-2)


def _decoded_e2m1(codes: Tensor) -> Tensor:
    numbers = torch.tensor((*NUMBERS, *(-number for number in NUMBERS)), device=codes.device)
    return numbers[split_codes(codes).int()]


def _decoded_e4m3(codes: Tensor) -> Tensor:
    return codes.view(torch.float8_e4m3fn).float()


def _decoded_e8m0(codes: Tensor) -> Tensor:
    return torch.ldexp(torch.ones_like(codes, dtype=torch.float32), codes.int() - BIAS)


INT4 = Codec("int4", 4, lambda codes: split_codes(codes).float(), zero=8)
INT8 = Codec("int8", 8, Tensor.float, zero=128)
E2M1 = Codec("float4 (E2M1)", 4, _decoded_e2m1)
E4M3 = Codec("float8 (E4M3)", 8, _decoded_e4m3)
# Powers of two, the scales of MXFP4.
E8M0 = Codec("E8M0", 8, _decoded_e8m0)
# Scales in float32, float16 or bfloat16.
FLOAT = Codec("float", 32, Tensor.float)
