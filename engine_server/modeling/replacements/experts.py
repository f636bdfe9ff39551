"""Experts of mixtures, for which our class is chosen on a sample of small random ones."""

import logging
from copy import copy, deepcopy

import torch
from torch import nn

from engine_server.modeling.formats.low_rank import StepSlots
from engine_server.modeling.formats.products import as_loaded
from engine_server.modeling.layers.experts import Experts, has_experts, receive_parameters
from engine_server.modeling.layers.gated_experts import DOWN, GATE_UP, WEIGHTS, GatedExperts, receive_gated
from engine_server.modeling.layers.kernel_sets.comparison import same
from engine_server.modeling.layers.misfits import misfits
from engine_server.modeling.layers.weight_layer import original_class
from engine_server.modeling.replacements.replacement import Replacement, Setup

# Sizes of the sample on which a class is compared with ours: experts, those of a token, tokens, hidden, intermediate.
NUM_EXPERTS, CHOSEN, TOKENS, HIDDEN, INNER = 4, 2, 6, 32, 16
logger = logging.getLogger(__name__)


def key_of_experts(module: nn.Module, parent: nn.Module) -> type | None:
    """Return the class that transformers gave a module with 3-D weights."""
    return original_class(module) if has_experts(module) else None


def class_for(module: nn.Module, setup: Setup) -> type[GatedExperts] | None:
    """Return the first of our classes that computes the same as that of a module, or None."""
    return next((kind for kind in setup.kernels.experts if computes_same(module, kind, setup.device)), None)


@torch.inference_mode()
def computes_same(module: nn.Module, kind: type[GatedExperts], device: torch.device) -> bool:
    """Check that `kind` computes the same as the class of a module, in a step with adapters for none of its tokens."""
    if not has_gated_parameters(module):
        return False
    plain = small_experts(module, device)
    ours = receive_gated(deepcopy(plain), kind, as_loaded)
    ours.step_slots = StepSlots()
    ours.step_slots.rows = torch.full((TOKENS,), -1, dtype=torch.int32, device=device)
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(TOKENS, HIDDEN, generator=generator).to(device)
    scores, index = torch.rand(TOKENS, NUM_EXPERTS, generator=generator).to(device).topk(CHOSEN)
    try:
        ours.settle()
        return same(ours(values, index, scores), plain(values, index, scores), 1)
    except misfits() as error:
        logger.debug("%s can't replace %s: %s", kind.__name__, original_class(module).__name__, error)
        return False


def has_gated_parameters(module: nn.Module) -> bool:
    """Check that a module has the parameters of gated experts and no others."""
    weights = set(WEIGHTS)
    biases = {f"{name}_bias" for name in WEIGHTS} if getattr(module, "has_bias", False) else set()
    return (
        module._parameters.keys() == weights | biases
        and all(getattr(module, name).ndim == 3 for name in weights)
        and bool(getattr(module, "has_gate", False))
        and not getattr(module, "has_post_expert_norm", False)
    )


def small_experts(module: nn.Module, device: torch.device) -> nn.Module:
    """Return a module of the class that transformers gave `module`, with a few small random experts in float32."""
    small = copy(module)
    small.__class__ = original_class(module)
    shapes = {
        GATE_UP: (NUM_EXPERTS, 2 * INNER, HIDDEN),
        DOWN: (NUM_EXPERTS, HIDDEN, INNER),
        f"{GATE_UP}_bias": (NUM_EXPERTS, 2 * INNER),
        f"{DOWN}_bias": (NUM_EXPERTS, HIDDEN),
    }
    generator = torch.Generator().manual_seed(0)
    small._parameters = {}
    for name in module._parameters:
        weight = torch.randn(shapes[name], generator=generator) / 4
        if small.is_transposed and weight.ndim == 3:
            weight = weight.mT.contiguous()
        small._parameters[name] = nn.Parameter(weight.to(device), requires_grad=False)
    small.num_experts = NUM_EXPERTS  # type: ignore[assignment]
    return small


def receive(module: nn.Module, kind: type[Experts], setup: Setup) -> tuple[nn.Module, str]:
    """Make experts receive their weights, and compute with them by our class."""
    if issubclass(kind, GatedExperts):
        receive_gated(module, kind, setup.layout).batch_invariant = setup.batch_invariant
    else:
        receive_parameters(module, kind)
    return module, kind.__name__


EXPERTS = Replacement("experts", key_of_experts, class_for, receive, default=Experts, holds_weights=True)
