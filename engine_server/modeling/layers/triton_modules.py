"""What modules of transformers are made to run on a GPU, and sums of one order for the batch-invariant mode."""

from functools import partial
from itertools import product
from typing import get_args

from torch import Tensor, nn

from engine_server.modeling.attention.interface import UnsupportedModelError
from engine_server.modeling.kernels.activation import Activation, gated
from engine_server.modeling.kernels.matmul import linear
from engine_server.modeling.kernels.norm import rms_norm
from engine_server.modeling.kernels.rotary import rotate
from engine_server.modeling.layers.fused_modules import FusedRMSNorm, Kernels, Turn, give_forward

ROW_BY_ROW = (FusedRMSNorm, nn.LayerNorm, nn.Embedding)


def turns(width: int, dim: int) -> list[Turn]:
    """Every way in which `rotate` can take the angles, of which each model has its own."""
    once = [slice(width // 2), slice(0, width, 2), *[slice(width)] * (2 * width <= dim)]  # each angle
    return [partial(_turn, *form) for form in product(once, (False, True))]


def _turn(
    angles: slice, interleaved: bool, query: Tensor, key: Tensor, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor]:
    query, key = (part[0].transpose(0, 1) for part in (query, key))
    turned = rotate(query, key, cos[0, :, angles], sin[0, :, angles], interleaved)
    query, key = (part.transpose(0, 1)[None] for part in turned)
    return query, key


TRITON = Kernels(rms_norm, (0.0, 1.0), [partial(gated, name) for name in get_args(Activation)], turns)


def fix_sums(model: nn.Module) -> None:
    """Give linear layers' rows the same bits whatever their number. Raises UnsupportedModelError in words."""
    for module in model.modules():
        if type(module) is nn.Linear:
            give_forward(module, _linear)
        elif list(module.parameters(recurse=False)) and not isinstance(module, ROW_BY_ROW):
            names = f"{type(module).__name__} of {type(model).__name__}"
            raise UnsupportedModelError(f"batch_invariant: the order in which {names} adds up isn't known")


def _linear(layer: nn.Linear, x: Tensor) -> Tensor:
    return linear(x, layer.weight, layer.bias)
