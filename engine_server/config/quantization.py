"""Settings of the quantisation of weights while they are loaded."""

from typing import Literal

import msgspec

Quantization = Literal["int8", "int4", "fp8"]


class QuantizationConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The form into which dense weights are rounded."""

    method: Quantization
    # Inputs that share a scale; None: all inputs of an output.
    group_size: int | None
    # Round the embedding and the language model's head to 8 bits too.
    head: bool
