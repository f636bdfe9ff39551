"""The interface of weights that are stored in fewer bits than they are computed in."""

from abc import abstractmethod
from copy import copy
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine_server.modeling.formats.dense import DenseFormat, as_parameter
from engine_server.modeling.formats.weight_format import WeightFormat


class QuantizedFormat(WeightFormat):
    """A weight [out, in] in a checkpoint's quantised form. In plain torch each product dequantises it."""

    # The dtype of the values and the output.
    dtype: torch.dtype
    bias: nn.Parameter | None

    @property
    @abstractmethod
    def shape(self) -> torch.Size:
        """Return [out, in]."""

    @abstractmethod
    def dense(self) -> Tensor:
        """Return the weights in `dtype`, [out, in]."""

    @abstractmethod
    def to(self, device: torch.device, dtype: torch.dtype) -> Self:
        """Return the same weight on `device`, for values of `dtype`."""

    def with_bias(self, bias: Tensor | None) -> Self:
        """Return the same weight with another bias."""
        own = copy(self)
        own.bias = None if bias is None else as_parameter(bias)
        return own

    def dequantised(self) -> DenseFormat:
        """Return the weights in `dtype`, and the bias."""
        return DenseFormat(self.dense(), self.bias)

    def apply(self, values: Tensor) -> Tensor:
        return F.linear(values, self.dense(), self.bias)
