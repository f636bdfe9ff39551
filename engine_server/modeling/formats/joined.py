"""Weights of one input in several formats, as a checkpoint stores them that spends more bits on some layers."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from engine_server.modeling.formats.weight_format import Weight, WeightFormat, WeightLayout


class JoinedFormat(WeightFormat):
    """Several weights of one input. Each is multiplied in its own format, and the outputs are concatenated."""

    def __init__(self, parts: Sequence[WeightFormat]) -> None:
        self.parts = list(parts)

    @property
    def fixed_order(self) -> bool:
        return all(part.fixed_order for part in self.parts)

    def parameters(self) -> dict[str, nn.Parameter]:
        return {
            f"{name}_{index}": tensor
            for index, part in enumerate(self.parts)
            for name, tensor in part.parameters().items()
        }

    @property
    def opaque(self) -> list[Tensor]:
        return [tensor for part in self.parts for tensor in part.opaque]

    def arranged(self, layout: WeightLayout) -> WeightFormat:
        return JoinedFormat([part.arranged(layout) for part in self.parts])

    def apply(self, values: Tensor) -> Tensor:
        return torch.cat([part.apply(values) for part in self.parts], -1)


def join(parts: Sequence[WeightFormat]) -> WeightFormat:
    """Return the weights of one input as one weight, concatenated if their formats allow it."""
    first = parts[0]
    if isinstance(first, Weight) and all(first.can_join(part) for part in parts[1:]):
        return type(first).concat(parts)  # type: ignore[arg-type]  # those that it joins are of its type
    return JoinedFormat(parts)
