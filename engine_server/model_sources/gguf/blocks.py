"""Blocks of quantised weights in GGUF files, as codes with a scale and a minimum for each group of inputs.

weight = scale * code + minimum, or scale * (code - 2 ** (bits - 1)) where there are no minima. The layouts are those of
ggml's ggml-common.h. Scales of the types with one level are kept exactly, in float16. The effective scales of K types
are products, which are rounded to float16 (a relative error of at most 2 ** -11), or kept in float32 where one is too
small.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]
Bytes = NDArray[np.uint8]
# The smallest number that float16 has in full precision.
SMALLEST = 2.0**-14
# A shift that keeps the dtype uint8.
FOUR = np.uint8(4)


class Integers(NamedTuple):
    """Weights [..., out, in] of 4 or 8 bits: codes uint8 [..., out, in]; scales and minima [..., out, in / group]."""

    bits: int
    codes: Bytes
    scales: Array
    minima: Array | None

    @property
    def packed(self) -> Bytes:
        """The codes, two in each byte where they have 4 bits, the even one in the low half."""
        return self.codes if self.bits == 8 else self.codes[..., ::2] | self.codes[..., 1::2] << FOUR

    def dense(self) -> NDArray[np.float32]:
        """Return the weights, [..., out, in]."""
        groups = self.codes.reshape(*self.scales.shape, -1).astype(np.float32)
        scales = self.scales.astype(np.float32)[..., None]
        minima = (
            -(1 << self.bits - 1) * scales
            if self.minima is None
            else self.minima.astype(np.float32)[..., None]
        )
        return (scales * groups + minima).reshape(self.codes.shape)

    def rows(self, order: NDArray[np.intp] | slice) -> "Integers":
        """Return some outputs, or all in another order; of stacked weights some matrices."""
        minima = None if self.minima is None else self.minima[order]
        return Integers(self.bits, self.codes[order], self.scales[order], minima)


def integers(kind: str, data: Bytes) -> Integers:
    """Return the weights of a tensor whose type is in `KINDS`; data: uint8 [..., out, bytes of a row]."""
    size, unpack = KINDS[kind]
    rows = data.shape[:-1]
    blocks = np.ascontiguousarray(data).reshape(-1, size)
    bits, codes, scales, minima = unpack(blocks)
    return Integers(
        bits,
        codes.reshape(*rows, -1),
        scales.reshape(*rows, -1),
        None if minima is None else minima.reshape(*rows, -1),
    )


def joined(parts: Sequence[Integers]) -> Integers | None:
    """Return weights of the same inputs, one after another along their outputs; None if their forms differ."""
    if len({(part.bits, part.minima is None, part.scales.shape[-1]) for part in parts}) > 1:
        return None
    if len(parts) == 1:
        return parts[0]
    minima = [part.minima for part in parts if part.minima is not None]
    return Integers(
        parts[0].bits,
        np.concatenate([part.codes for part in parts], -2),
        np.concatenate([part.scales for part in parts], -2),
        np.concatenate(minima, -2) if minima else None,
    )


def _floats(blocks: Bytes, start: int) -> NDArray[np.float16]:
    return np.ascontiguousarray(blocks[:, start : start + 2]).view(np.float16)


def _nibbles(blocks: Bytes, run: int) -> Bytes:
    """Return the low halves of each `run` bytes and then their high halves: [n, m] to [n, 2 m]."""
    runs = blocks.reshape(len(blocks), -1, 1, run)
    return np.concatenate((runs & 15, runs >> 4), 2).reshape(len(blocks), -1)


def _fifth_bits(blocks: Bytes) -> Bytes:
    """Return the fifth bits of 32 codes as 0 or 16: [n, 4] to [n, 32]."""
    return np.unpackbits(blocks, axis=1, bitorder="little") << FOUR


def _q4_0(blocks: Bytes) -> Integers:
    return Integers(4, _nibbles(blocks[:, 2:], 16), _floats(blocks, 0), None)


def _q4_1(blocks: Bytes) -> Integers:
    return Integers(4, _nibbles(blocks[:, 4:], 16), _floats(blocks, 0), _floats(blocks, 2))


def _q5_0(blocks: Bytes) -> Integers:
    codes = _nibbles(blocks[:, 6:], 16) | _fifth_bits(blocks[:, 2:6])
    return Integers(8, codes + np.uint8(128 - 16), _floats(blocks, 0), None)


def _q5_1(blocks: Bytes) -> Integers:
    codes = _nibbles(blocks[:, 8:], 16) | _fifth_bits(blocks[:, 4:8])
    return Integers(8, codes, _floats(blocks, 0), _floats(blocks, 2))


def _q8_0(blocks: Bytes) -> Integers:
    return Integers(8, blocks[:, 2:] ^ np.uint8(128), _floats(blocks, 0), None)


def _q4_k(blocks: Bytes) -> Integers:
    return Integers(4, _nibbles(blocks[:, 16:], 32), *_k_scales(blocks))


def _q5_k(blocks: Bytes) -> Integers:
    fifth = blocks[:, 16:48].reshape(-1, 1, 32) >> np.arange(8, dtype=np.uint8)[:, None] & np.uint8(1)
    codes = _nibbles(blocks[:, 48:], 32) | (fifth << FOUR).reshape(len(blocks), -1)
    return Integers(8, codes, *_k_scales(blocks))


def _q6_k(blocks: Bytes) -> Integers:
    low = _nibbles(blocks[:, :128], 64)
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None] & np.uint8(3)
    codes = low | (high << FOUR).reshape(len(blocks), -1)
    scales = blocks[:, 192:208].view(np.int8).astype(np.float32) * _floats(blocks, 208).astype(np.float32)
    return Integers(8, codes + np.uint8(128 - 32), _narrowed(scales), None)


def _k_scales(blocks: Bytes) -> tuple[Array, Array]:
    """Return the effective scales and minima of the 8 groups of Q4_K and Q5_K, whose factors have 6 bits."""
    scale, minimum = (_floats(blocks, start).astype(np.float32) for start in (0, 2))
    first, second, third = (blocks[:, start : start + 4] for start in (4, 8, 12))
    scales = np.concatenate((first & 63, third & 15 | first >> 2 & 48), 1)
    minima = np.concatenate((second & 63, third >> 4 | second >> 2 & 48), 1)
    return _narrowed(scale * scales), _narrowed(-minimum * minima)


def _narrowed(values: NDArray[np.float32]) -> Array:
    """Return values in float16 if none but 0 is outside its full precision."""
    magnitudes = np.abs(values[values != 0])
    fits = ((magnitudes >= SMALLEST) & (magnitudes <= np.finfo(np.float16).max)).all()
    return values.astype(np.float16) if fits else values


# Bytes of a block, and the function that unpacks blocks [n, bytes], by ggml's name of the type.
KINDS: dict[str, tuple[int, Callable[[Bytes], Integers]]] = {
    "Q4_0": (18, _q4_0),
    "Q4_1": (20, _q4_1),
    "Q5_0": (22, _q5_0),
    "Q5_1": (24, _q5_1),
    "Q8_0": (34, _q8_0),
    "Q4_K": (144, _q4_k),
    "Q5_K": (176, _q5_k),
    "Q6_K": (210, _q6_k),
}
