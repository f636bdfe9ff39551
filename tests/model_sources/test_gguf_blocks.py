"""Blocks of GGUF files, compared with the dequantisation of ggml's own package."""

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_server.model_sources.gguf.blocks import KINDS, integers

OUTPUTS, INPUTS = 3, 512
# Bytes of the floating factors in a block, by type.
FACTORS = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}


def random_blocks(kind: str, seed: int, exponent: int) -> np.ndarray:
    """Return rows of random blocks, with factors between 1 and 2 times 2 ** exponent."""
    random = np.random.default_rng(seed)
    size, _ = KINDS[kind]
    count, _ = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    blocks = random.integers(0, 256, (OUTPUTS * INPUTS // count, size), dtype=np.uint8)
    starts = FACTORS.get(kind, (0, 2) if kind.endswith("_1") else (0,))
    for start in starts:
        factors = random.uniform(1, 2, len(blocks)) * 2.0**exponent * random.choice([-1, 1], len(blocks))
        blocks[:, start : start + 2] = factors.astype(np.float16)[:, None].view(np.uint8)
    return blocks.reshape(OUTPUTS, -1)


@pytest.mark.parametrize("kind", sorted(KINDS))
@given(seed=st.integers(0, 1 << 30), exponent=st.integers(-12, 4))
def test_integers_are_the_weights_of_the_blocks(kind: str, seed: int, exponent: int) -> None:
    data = random_blocks(kind, seed, exponent)
    found = integers(kind, data)
    expected = gguf.dequantize(data, gguf.GGMLQuantizationType[kind])
    scale = np.abs(found.scales.astype(np.float32)).max(initial=0) * 256
    bound = 2.0**-11 if kind.endswith("_K") else 2.0**-22  # of float16; of sums in float32
    lowest = 0 if found.minima is None else np.abs(found.minima.astype(np.float32)).max()
    np.testing.assert_allclose(found.dense(), expected, rtol=0, atol=bound * (scale + lowest))
    order = np.array([2, 0, 1])
    np.testing.assert_array_equal(found.rows(order).dense(), found.dense()[order])


def test_scales_too_small_for_float16_are_kept_in_float32() -> None:
    assert integers("Q4_K", random_blocks("Q4_K", 0, -20)).scales.dtype == np.float32
    assert integers("Q4_K", random_blocks("Q4_K", 0, -4)).scales.dtype == np.float16


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q4_K"])
def test_even_code_is_in_the_low_half_of_a_packed_byte(kind: str) -> None:
    found = integers(kind, random_blocks(kind, 0, 0))
    assert found.packed.shape == (OUTPUTS, INPUTS // 2)
    np.testing.assert_array_equal(found.packed & 15, found.codes[:, ::2])
    np.testing.assert_array_equal(found.packed >> 4, found.codes[:, 1::2])
