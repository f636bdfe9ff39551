"""The accuracy of weight formats on SmolLM2, over 2,000 tokens of English."""

from pathlib import Path

import pytest
from torch import Tensor

from benchmarks.accuracy import FORMATS, measure, text_tokens

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def contexts(smollm2: Path) -> Tensor:
    return text_tokens(smollm2, 2000)


def test_divergence_of_8_bit_weights_from_bfloat16_is_under_0_005(smollm2: Path, contexts: Tensor) -> None:
    assert measure(smollm2, contexts, FORMATS["int8 in groups of 64"]).divergence < 0.005


def test_products_with_4_bit_weights_change_perplexity_by_under_2_percent(
    smollm2: Path, contexts: Tensor
) -> None:
    # Against the same weights: rounding the checkpoint's 4-bit weights to other groups costs far more than products.
    accuracy = measure(smollm2, contexts, FORMATS["int4 in groups of 64"])
    assert accuracy.own_divergence < 0.06
    assert abs(accuracy.own_perplexity) < 0.02
