"""Modules of transformers made to run our kernels, each where a trial shows that it computes the same."""

from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from functools import partial
from inspect import signature
from itertools import product
from types import FunctionType, MethodType
from typing import Any, get_args

import torch
from torch import Tensor, nn

from engine_server.modeling.attention import UnsupportedModelError
from engine_server.modeling.kernels.activation import Activation, gated
from engine_server.modeling.kernels.matmul import linear
from engine_server.modeling.kernels.norm import rms_norm
from engine_server.modeling.kernels.rotary import rotate

EPS = ("variance_epsilon", "eps")  # where norms keep it
LAYER = {"input_layernorm", "self_attn", "post_attention_layernorm", "mlp"}
ROPE = "apply_rotary_pos_emb"


class FusedRMSNorm(nn.Module):
    """In place of a model's own; offset: 1.0 where weights lie around 0."""

    def __init__(self, weight: nn.Parameter, eps: float, offset: float) -> None:
        super().__init__()
        self.weight = weight
        self.eps = eps
        self.offset = offset

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps, self.offset)[1]


ROW_BY_ROW = (FusedRMSNorm, nn.LayerNorm, nn.Embedding)
Turn = Callable[..., tuple[Tensor, Tensor]]


class Rope:
    """In place of an `apply_rotary_pos_emb`: at the first call, with real angles, it finds what turns as that does."""

    def __init__(self, original: Turn) -> None:
        self.original = original
        self.chosen: Turn | None = None

    def __call__(self, *tensors: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
        """query, key: [1, heads, T, dim]; cos, sin: [1, T, angles]."""
        if options or [tensor.dim() for tensor in tensors] != [4, 4, 3, 3]:
            return self.original(*tensors, **options)
        if self.chosen is None:
            self.chosen = self._choose(*(tensor[..., :16, :] for tensor in tensors))
        return self.chosen(*tensors)

    def _choose(self, query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> Turn:
        width, dim = cos.shape[-1], query.shape[-1]
        sample = [torch.linspace(-1, 1, part.numel()).to(part).view(part.shape) for part in (query, key)]
        expected = self.original(*sample, cos, sin)
        once = [slice(width // 2), slice(0, width, 2), *[slice(width)] * (2 * width <= dim)]  # each angle
        turns: list[Turn] = [partial(_turn, *form) for form in product(once, (False, True))]
        for turn in turns:
            if all(map(same, turn(*sample, cos, sin), expected, (2, 2))):
                return turn
        return self.original


def _turn(
    angles: slice, interleaved: bool, query: Tensor, key: Tensor, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor]:
    query, key = (part[0].transpose(0, 1) for part in (query, key))
    turned = rotate(query, key, cos[0, :, angles], sin[0, :, angles], interleaved)
    query, key = (part.transpose(0, 1)[None] for part in turned)
    return query, key


class Echo(nn.Module):
    """In place of attention, while a layer is tried."""

    def forward(self, hidden_states: Tensor, **options: Any) -> tuple[Tensor, None]:
        self.options = options
        return hidden_states.roll(1, 1), None


@torch.inference_mode()
def use_kernels(model: nn.Module) -> None:
    """Swap norms, gated activations, sums before a norm, and ropes. Other models' modules stay as they are."""
    ropes: dict[object, Rope] = {}
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if (fused := fused_norm(child)) is not None:
                setattr(parent, name, fused)
    for module in model.modules():
        swap_gate(module)
        swap_rope(module, ropes)
        swap_layer(module)


def same(found: Tensor, expected: Tensor, scale: float) -> bool:
    """Up to rounding once more or less; scale: of terms that may cancel."""
    slack = max(1e-5, 2 * torch.finfo(expected.dtype).eps)
    return found.dtype == expected.dtype and torch.allclose(found, expected, rtol=slack, atol=scale * slack)


def fused_norm(norm: nn.Module) -> FusedRMSNorm | None:
    """None unless it is an RMSNorm."""
    weights = dict(norm.named_parameters())
    eps = [getattr(norm, name) for name in EPS if isinstance(getattr(norm, name, None), float)]
    if weights.keys() != {"weight"} or not eps or len(signature(norm.forward).parameters) != 1:
        return None
    weight = norm.get_parameter("weight")
    if weight.dim() != 1:
        return None
    # Not around 0, as a LayerNorm would make it, and once so small that eps counts.
    sample = torch.linspace(-1, 2, len(weight)) * torch.tensor([1e-3, 1, 30])[:, None]
    sample = sample[None].to(weight)
    candidates = (FusedRMSNorm(weight, eps[0], offset) for offset in (0.0, 1.0))
    return next((fused for fused in candidates if same(fused(sample), norm(sample), 0)), None)


def swap_gate(module: Any) -> None:
    """Of a gated MLP, or of experts in transformers: what makes one of gate and up."""
    if hasattr(module, "_apply_gate"):
        sample = torch.linspace(-20, 20, 400, device=next(module.parameters()).device).view(2, -1)
        expected = module._apply_gate(sample)
        candidates = (partial(gated, activation) for activation in get_args(Activation))
        fitting = (fused for fused in candidates if same(fused(sample), expected, 1))
        module._apply_gate = next(fitting, module._apply_gate)


def swap_rope(module: nn.Module, ropes: dict[object, Rope]) -> None:
    """Give the module a forward of its own, in which the rope's name means our `Rope`."""
    forward = type(module).forward
    if not isinstance(forward, FunctionType) or ROPE not in forward.__code__.co_names:
        return
    names = forward.__globals__
    rope = ropes.setdefault(names[ROPE], Rope(names[ROPE]))
    own = FunctionType(
        forward.__code__, names | {ROPE: rope}, None, forward.__defaults__, forward.__closure__
    )
    own.__kwdefaults__ = forward.__kwdefaults__
    module.forward = MethodType(own, module)


def swap_layer(layer: Any) -> None:
    """In layers as Llama's, add what attention gives and norm the sum at once."""
    children: dict[str, Any] = dict(layer.named_children())
    if children.keys() != LAYER or not isinstance(children["post_attention_layernorm"], FusedRMSNorm):
        return
    layer.self_attn, layer.mlp = Echo(), nn.Identity()
    trial = deepcopy(layer)
    layer.self_attn, layer.mlp = children["self_attn"], children["mlp"]
    weight = trial.post_attention_layernorm.weight.fill_(1)
    sample = torch.linspace(-1, 2, 3 * len(weight)).view(1, 3, -1).to(weight)
    _, *names, _options = signature(layer.forward).parameters
    options = dict.fromkeys(names)
    with suppress(TypeError, ValueError, AttributeError):  # of a layer that looks at them, or expects more
        expected, told = trial(sample, **options), trial.self_attn.options
        fits = same(fused_layer(trial, sample, **options), expected, 8) and trial.self_attn.options == told
        if fits and isinstance(layer.mlp(sample), Tensor):
            layer.forward = MethodType(fused_layer, layer)


def fused_layer(layer: Any, hidden_states: Tensor, **options: Any) -> Tensor:
    """A layer's forward: [1, T, hidden] to [1, T, hidden]."""
    attended, _ = layer.self_attn(hidden_states=layer.input_layernorm(hidden_states), **options)
    norm = layer.post_attention_layernorm
    total, normed = rms_norm(attended, norm.weight, norm.eps, norm.offset, hidden_states)
    output: Tensor = total + layer.mlp(normed)
    return output


def fix_sums(model: nn.Module) -> None:
    """Give linear layers' rows the same bits whatever their number. Raises UnsupportedModelError in words."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.forward = MethodType(_linear, module)  # type: ignore[method-assign]
        elif list(module.parameters(recurse=False)) and not isinstance(module, ROW_BY_ROW):
            names = f"{type(module).__name__} of {type(model).__name__}"
            raise UnsupportedModelError(f"batch_invariant: the order in which {names} adds up isn't known")


def _linear(layer: nn.Linear, x: Tensor) -> Tensor:
    return linear(x, layer.weight, layer.bias)
