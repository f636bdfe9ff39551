"""The passes that replace parts of transformers' modules by our kernels, by the modules' classes.

A class gets a kernel only if `Choices` has one for it, found and verified on a two-layer copy of the model.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from inspect import signature
from types import FunctionType
from typing import Any

import torch
from torch import nn

from engine_server.modeling.attention.interface import UnsupportedModelError
from engine_server.modeling.device import Device
from engine_server.modeling.layers.activation import Activation
from engine_server.modeling.layers.decoder_layer import CHILDREN, fused_layer, link_layers
from engine_server.modeling.layers.fused_router import RouterForm
from engine_server.modeling.layers.gated_experts import GatedExperts
from engine_server.modeling.layers.kernel_sets.kernel_set import Activation as ActivationKernel
from engine_server.modeling.layers.kernel_sets.kernel_set import Gate, KernelSet
from engine_server.modeling.layers.norm import FusedLayerNorm, FusedRMSNorm, HeadNorm, UnweightedRMSNorm
from engine_server.modeling.layers.rope import SequenceRope, is_stretched
from engine_server.modeling.layers.rope_table import ROPE, RopeTable
from engine_server.modeling.layers.rotation import ChosenRotation
from engine_server.modeling.layers.weight_layer import original_class
from engine_server.modeling.loading.report import PassReport, Tally

# The attributes that norms use for their eps.
EPS = ("variance_epsilon", "eps")
# The modules whose classes are activations.
ACTIVATIONS = ("torch.nn.modules.activation", "transformers.activations")
# Activations that models define themselves.
OWN_ACTIVATIONS = ("BloomGelu",)
ROTATION = "apply_rotary_pos_emb"
# The norms of heads in attention before the rotation, and the part of PendingHeads that each is.
HEAD_NORMS = {"q_norm": "query_norm", "k_norm": "key_norm"}

# The class of a module with a gate, and of its activation.
GateKind = tuple[type, type]
# The class and the settings of an activation.
ActivationKind = tuple[type, str]


@dataclass(frozen=True)
class Choices:
    """Verified replacements, by the class that they replace."""

    # Classes of gated MLPs that compute the same as GatedMLP.
    mlps: frozenset[type] = frozenset()
    # By class of experts, that of ours which computes the same.
    experts: Mapping[type, type[GatedExperts]] = field(default_factory=dict)
    # By class of routers, the form with which FusedRouter computes the same.
    routers: Mapping[type, RouterForm] = field(default_factory=dict)
    # The weight's offset, by class of norm.
    norms: Mapping[type, float] = field(default_factory=dict)
    # Classes of norms that compute the same as FusedLayerNorm.
    layer_norms: frozenset[type] = frozenset()
    gates: Mapping[GateKind, Gate] = field(default_factory=dict)
    activations: Mapping[ActivationKind, ActivationKernel] = field(default_factory=dict)
    # By the model's own rotation function.
    rotations: Mapping[Any, ChosenRotation] = field(default_factory=dict)
    # Rotation functions that attention can compute, with the norms of queries and keys before them.
    deferred: frozenset[Any] = frozenset()
    # Classes of decoder layers that compute the same as `fused_layer`.
    layers: frozenset[type] = frozenset()


def replace_norms(model: nn.Module, kernels: KernelSet, offsets: Mapping[type, float]) -> PassReport:
    """Replace the RMSNorms whose classes have an offset."""
    tally = Tally("norms")
    for parent in list(model.modules()):
        for name, norm in parent.named_children():
            if is_unweighted_norm(norm) and type(norm) in offsets:
                setattr(parent, name, UnweightedRMSNorm(kernels, eps_of(norm)))
                tally.replaced(type(norm), "UnweightedRMSNorm", type(norm))
            elif not is_norm(norm):
                continue
            elif type(norm) in offsets:
                fused = FusedRMSNorm(kernels, norm.get_parameter("weight"), eps_of(norm), offsets[type(norm)])
                setattr(parent, name, fused)
                tally.replaced(type(norm), "FusedRMSNorm", type(norm))
            else:
                tally.left(type(norm), "computes something else")
    return tally.report()


def is_norm(module: nn.Module) -> bool:
    """Return True if a module has the parts of an RMSNorm: one weight of one dimension, an eps, and one input."""
    return not isinstance(module, FusedRMSNorm) and has_parts_of_norm(module, {"weight"})


def is_unweighted_norm(module: nn.Module) -> bool:
    """Return True if a module has the parts of an RMSNorm but for its weight."""
    return not isinstance(module, FusedRMSNorm) and has_parts_of_norm(module, set())


def has_parts_of_norm(module: nn.Module, names: set[str]) -> bool:
    """Return True if a module has these parameters, of one dimension, an eps, and one input."""
    parameters = dict(module.named_parameters())
    return (
        parameters.keys() == names
        and all(parameter.dim() == 1 for parameter in parameters.values())
        and any(isinstance(getattr(module, name, None), float) for name in EPS)
        and len(signature(module.forward).parameters) == 1
    )


def replace_layer_norms(model: nn.Module, kernels: KernelSet, verified: frozenset[type]) -> PassReport:
    """Replace layer norms by those of a kernel."""
    tally = Tally("layer norms")
    for parent in list(model.modules()):
        for name, norm in parent.named_children():
            if is_layer_norm(norm) and type(norm) in verified:
                setattr(parent, name, fused_layer_norm(norm, kernels))
                tally.replaced(type(norm), "FusedLayerNorm", type(norm))
    return tally.report()


def is_layer_norm(module: nn.Module) -> bool:
    """Return True if a module has the parts of a layer norm: those of an RMSNorm, and maybe a bias."""
    ours = FusedRMSNorm | FusedLayerNorm
    return not isinstance(module, ours) and (
        has_parts_of_norm(module, {"weight"}) or has_parts_of_norm(module, {"weight", "bias"})
    )


def fused_layer_norm(norm: nn.Module, kernels: KernelSet) -> FusedLayerNorm:
    """Return a FusedLayerNorm with the parameters of a norm."""
    return FusedLayerNorm(kernels, norm.get_parameter("weight"), norm._parameters.get("bias"), eps_of(norm))


def eps_of(norm: nn.Module) -> float:
    """Return a norm's eps."""
    return next(value for name in EPS if isinstance(value := getattr(norm, name, None), float))


def replace_gates(model: nn.Module, gates: Mapping[GateKind, Gate]) -> PassReport:
    """Set the kernel of gated MLPs and experts that computes act(gate) * up."""
    tally = Tally("gates")
    for module in model.modules():
        kind = gate_kind(module)
        if kind is None:
            continue
        if kind in gates:
            module._apply_gate = gates[kind]  # type: ignore[assignment]
            tally.replaced(original_class(module), "a gate kernel", kind)
        else:
            tally.left(original_class(module), f"{kind[1].__name__} has no kernel")
    return tally.report()


def gate_kind(module: nn.Module) -> GateKind | None:
    """Return the classes that define a module's gate, if it has one."""
    if not callable(getattr(module, "_apply_gate", None)):
        return None
    return original_class(module), type(getattr(module, "act_fn", None))


def replace_activations(
    model: nn.Module, activations: Mapping[ActivationKind, ActivationKernel]
) -> PassReport:
    """Replace activations that no kernel of a gate includes."""
    tally = Tally("activations")
    for parent, name, child in list(activation_sites(model)):
        kind = activation_kind(child)
        if kind in activations:
            setattr(parent, name, Activation(activations[kind]))
            tally.replaced(type(child), "Activation", kind)
        else:
            tally.left(type(child), "no kernel computes it")
    return tally.report()


def activation_sites(model: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    """Yield parent, name and module of each activation that no kernel of a gate includes."""
    for parent in model.modules():
        if "_apply_gate" not in vars(parent):
            yield from (
                (parent, name, child) for name, child in parent.named_children() if is_activation(child)
            )


def is_activation(module: nn.Module) -> bool:
    """Return True for an activation of torch or transformers, which has no parameters, and one input."""
    return (
        (type(module).__module__ in ACTIVATIONS or type(module).__name__ in OWN_ACTIVATIONS)
        and not list(module.parameters())
        and len(signature(module.forward).parameters) == 1
    )


def activation_kind(module: nn.Module) -> ActivationKind:
    """Return the class and the settings of an activation."""
    return type(module), module.extra_repr()


def replace_rotations(model: nn.Module, rotations: Mapping[Any, ChosenRotation]) -> PassReport:
    """Replace attention's forward by a copy in which the rotation's name refers to our kernel."""
    tally = Tally("rotations")
    classes: dict[type, Any] = {}
    for module in model.modules():
        original = rotation_of(module)
        if original is None:
            continue
        if original in rotations:
            tally.replaced(original_class(module), "a rotation kernel", original)
            set_rotation(module, rotations[original], classes)
        else:
            tally.left(original_class(module), "no kernel rotates as it does")
    return tally.report()


def defer_rotations(model: nn.Module, deferred: frozenset[Any]) -> PassReport:
    """Leave the rotations by a kernel, and the norms of heads before them, to the attention backend.

    deferred: the original functions of these rotations.
    """
    tally = Tally("deferred rotations")
    classes: dict[type, Any] = {}
    for module in model.modules():
        rotation = rotation_in(module)
        if isinstance(rotation, ChosenRotation) and rotation.original in deferred:
            tally.replaced(original_class(module), "a rotation with the cache's write", rotation.original)
            set_rotation(module, rotation.deferring(), classes)
            defer_head_norms(module)
    return tally.report()


def set_rotation(module: nn.Module, rotation: ChosenRotation, classes: dict[type, Any]) -> None:
    """Make a module rotate by `rotation`. classes: those that were made of others for the same rotation."""
    if type(module) not in classes:
        forward = with_global(type(module).forward, ROTATION, rotation)
        classes[type(module)] = class_with_forward(module, forward)
    module.__class__ = classes[type(module)]


def defer_head_norms(attention: nn.Module) -> None:
    """Leave the norms of each head of queries and keys to the attention backend."""
    dim = getattr(attention, "head_dim", None)
    for name, part in HEAD_NORMS.items():
        norm = attention._modules.get(name)
        if type(norm) is FusedRMSNorm and norm.weight.shape == (dim,):
            deferred: Any = norm
            deferred.__class__, deferred.part = HeadNorm, part


def rotation_of(module: nn.Module) -> Callable[..., Any] | None:
    """Return the model's own function by which a module's forward rotates queries and keys."""
    found = rotation_in(module)
    return None if isinstance(found, ChosenRotation) else found


def rotation_in(module: nn.Module) -> Callable[..., Any] | None:
    """Return the function by which a module's forward rotates queries and keys, the model's own or ours."""
    forward = type(module).forward
    if not isinstance(forward, FunctionType) or ROTATION not in forward.__code__.co_names:
        return None
    found: Callable[..., Any] | None = forward.__globals__.get(ROTATION)
    return found


def with_global(function: Any, name: str, value: object) -> Any:
    """Return a copy of a function in which the global `name` is `value`."""
    copy = FunctionType(
        function.__code__,
        function.__globals__ | {name: value},
        None,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def class_with_forward(module: nn.Module, forward: Callable[..., Any]) -> Any:
    """Return a subclass of a module's class with another forward.

    A bound method would hold a reference to the module and keep its weights alive.
    """
    kind = type(module)
    names = {"original": original_class(module), "__module__": kind.__module__}
    own: Any = type(kind.__name__, (kind,), names)
    own.forward = forward  # set afterwards: transformers wraps the forward in a class body for training
    return own


def replace_ropes(model: nn.Module, device: Device) -> PassReport:
    """Replace rotary embeddings that stretch beyond the trained positions by ones that do so per sequence."""
    tally = Tally("stretched ropes")
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            rope: Any = child
            if not hasattr(rope, "rope_type"):
                continue
            layers = [*rope.rope_type] if isinstance(rope.rope_type, dict) else [None]
            kinds = [kind for kind in layers if is_stretched(rope, kind)]
            if len(kinds) > 1:
                names = " and ".join(map(str, kinds))
                raise UnsupportedModelError(
                    f"the ropes of {names} layers stretch with a context; one type of layers at most may"
                )
            for kind in kinds:
                setattr(parent, name, SequenceRope(rope, trained_positions(rope, kind), device, kind))
                tally.replaced(type(child), "SequenceRope")
    return tally.report()


def trained_positions(rope: Any, kind: str | None) -> int:
    """Return the length beyond which transformers changes the factors of a stretched rope.

    kind: the type of layers; None for a rope of all.
    """
    parameters = rope.config.rope_parameters if kind is None else rope.config.rope_parameters[kind]
    if parameters["rope_type"] == "longrope":
        return int(parameters["original_max_position_embeddings"])
    return int(rope.config.max_position_embeddings)


def tabulate_ropes(model: nn.Module, dtype: torch.dtype, device: torch.device, length: int) -> PassReport:
    """Replace rotary embeddings that depend on the position alone by tables of `length` positions.

    model: with its weights and buffers on the device, and with the dtype of its hidden states.
    """
    tally = Tally("tables of ropes")
    for parent in list(model.modules()):
        if isinstance(parent, SequenceRope):
            continue
        for name, child in parent.named_children():
            if not type(child).__name__.endswith(ROPE) or not hasattr(child, "rope_type"):
                continue
            table = RopeTable.of(child, length, torch.empty(0, dtype=dtype, device=device))
            if table is None:
                tally.left(type(child), "depends on more than the position, or its table is too large")
            else:
                setattr(parent, name, table)
                tally.replaced(type(child), "RopeTable")
    return tally.report()


def replace_layers(model: nn.Module, verified: frozenset[type]) -> PassReport:
    """Make decoder layers add residuals and normalize the sums with one kernel."""
    tally = Tally("decoder layers")
    classes: dict[type, Any] = {}
    for module in model.modules():
        if not is_layer(module):
            continue
        if type(module) in verified:
            tally.replaced(type(module), "fused_layer", type(module))
            if type(module) not in classes:
                classes[type(module)] = class_with_forward(module, fused_layer)
                classes[type(module)].add_residual = torch.add
            module.__class__ = classes[type(module)]
        else:
            tally.left(type(module), "computes something else")
    for module in model.modules():
        link_layers(module)
    return tally.report()


def is_layer(module: nn.Module) -> bool:
    """Return True for a decoder layer with the children of Llama's, and a norm that adds the residual."""
    return (
        module._modules.keys() == CHILDREN
        and isinstance(module._modules["post_attention_layernorm"], FusedRMSNorm)
        and type(module).forward is not fused_layer
    )
