"""Modules of transformers made to run fused kernels, each where a trial shows that it computes the same."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import deepcopy
from inspect import signature
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

EPS = ("variance_epsilon", "eps")  # where norms keep it
LAYER = {"input_layernorm", "self_attn", "post_attention_layernorm", "mlp"}
ROPE = "apply_rotary_pos_emb"

Turn = Callable[..., tuple[Tensor, Tensor]]


class Kernels(NamedTuple):
    """What modules can be made to run on one kind of device."""

    rms_norm: Callable[..., tuple[Tensor, Tensor]]  # (x, weight, eps, offset, residual): see kernels/norm.py
    offsets: Sequence[float]  # that it knows
    gates: Sequence[Callable[[Tensor], Tensor]]  # [..., 2 * dim] to [..., dim]; may write over the former
    turns: Callable[[int, int], Sequence[Turn]]  # for so many angles of a token and dims of a head


class FusedRMSNorm(nn.Module):
    """In place of a model's own; offset: 1.0 where weights lie around 0."""

    def __init__(self, kernels: Kernels, weight: nn.Parameter, eps: float, offset: float) -> None:
        super().__init__()
        self.kernel = kernels.rms_norm
        self.weight = weight
        self.eps = eps
        self.offset = offset

    def forward(self, x: Tensor) -> Tensor:
        return self.add(x)[1]

    def add(self, x: Tensor, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The sum, and the norm of it."""
        return self.kernel(x, self.weight, self.eps, self.offset, residual)


class Rope:
    """In place of an `apply_rotary_pos_emb`: at the first call, with real angles, it finds what turns as that does."""

    def __init__(self, kernels: Kernels, original: Turn) -> None:
        self.turns = kernels.turns
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
        sample = [torch.linspace(-1, 1, part.numel()).to(part).view(part.shape) for part in (query, key)]
        expected = self.original(*sample, cos, sin)
        for turn in self.turns(cos.shape[-1], query.shape[-1]):
            if all(map(same, turn(*sample, cos, sin), expected, (2, 2))):
                return turn
        return self.original


class Echo(nn.Module):
    """In place of attention, while a layer is tried."""

    def forward(self, hidden_states: Tensor, **options: Any) -> tuple[Tensor, None]:
        self.options = options
        return hidden_states.roll(1, 1), None


@torch.inference_mode()
def use_kernels(model: nn.Module, kernels: Kernels) -> None:
    """Swap norms, gated activations, sums before a norm, and ropes. Other models' modules stay as they are."""
    ropes: dict[object, Rope] = {}
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if (fused := fused_norm(child, kernels)) is not None:
                setattr(parent, name, fused)
    for module in model.modules():
        swap_gate(module, kernels)
        swap_rope(module, ropes, kernels)
        swap_layer(module)


def same(found: Tensor, expected: Tensor, scale: float) -> bool:
    """Up to rounding once more or less; scale: of terms that may cancel."""
    slack = max(1e-5, 2 * torch.finfo(expected.dtype).eps)
    return found.dtype == expected.dtype and torch.allclose(found, expected, rtol=slack, atol=scale * slack)


def fused_norm(norm: nn.Module, kernels: Kernels) -> FusedRMSNorm | None:
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
    candidates = (FusedRMSNorm(kernels, weight, eps[0], offset) for offset in kernels.offsets)
    return next((fused for fused in candidates if same(fused(sample), norm(sample), 0)), None)


def swap_gate(module: Any, kernels: Kernels) -> None:
    """Of a gated MLP, or of experts in transformers: what makes one of gate and up."""
    if hasattr(module, "_apply_gate"):
        sample = torch.linspace(-20, 20, 400, device=next(module.parameters()).device).view(2, -1)
        expected = module._apply_gate(sample)
        fitting = (gate for gate in kernels.gates if same(gate(sample.clone()), expected, 1))
        if (fused := next(fitting, None)) is not None:
            module._apply_gate = fused


def swap_rope(module: nn.Module, ropes: dict[object, Rope], kernels: Kernels) -> None:
    """Give the module a forward of its own, in which the rope's name means our `Rope`."""
    forward = type(module).forward
    if not isinstance(forward, FunctionType) or ROPE not in forward.__code__.co_names:
        return
    names = forward.__globals__
    if ROPE not in names:  # it is another module's
        return
    rope = ropes.setdefault(names[ROPE], Rope(kernels, names[ROPE]))
    own = FunctionType(
        forward.__code__, names | {ROPE: rope}, None, forward.__defaults__, forward.__closure__
    )
    own.__kwdefaults__ = forward.__kwdefaults__
    give_forward(module, own)


def give_forward(module: nn.Module, forward: Callable[..., Any]) -> None:
    """By a class of its own: a bound method would hold the module, whose weights then outlive their last user."""
    kind = type(module)
    own: Any = type(kind.__name__, (kind,), {})
    own.forward = forward  # what is there when a class is made, transformers wraps for training
    module.__class__ = own


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
            give_forward(layer, fused_layer)


def fused_layer(layer: Any, hidden_states: Tensor, **options: Any) -> Tensor:
    """A layer's forward: [1, T, hidden] to [1, T, hidden]."""
    attended, _ = layer.self_attn(hidden_states=layer.input_layernorm(hidden_states), **options)
    total, normed = layer.post_attention_layernorm.add(attended, hidden_states)
    output: Tensor = total + layer.mlp(normed)
    return output
