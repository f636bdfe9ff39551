"""The verification of replacements, on a two-layer random copy of the model."""

import logging
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from engine_server.modeling.attention.interface import UnsupportedModelError
from engine_server.modeling.formats.weight_format import as_loaded
from engine_server.modeling.layers.experts import has_experts
from engine_server.modeling.layers.fused_router import RouterForm
from engine_server.modeling.layers.gated_experts import GatedExperts
from engine_server.modeling.layers.kernel_sets.comparison import same
from engine_server.modeling.layers.kernel_sets.kernel_set import Activation, Gate, KernelSet
from engine_server.modeling.layers.misfits import misfits
from engine_server.modeling.layers.norm import FusedRMSNorm, UnweightedRMSNorm
from engine_server.modeling.layers.rotation import ChosenRotation
from engine_server.modeling.layers.weight_layer import original_class
from engine_server.modeling.loading.backbone import backbone
from engine_server.modeling.loading.expert_classes import class_for
from engine_server.modeling.loading.fusion import fuse_mlps, is_gated_mlp
from engine_server.modeling.loading.probe import Probe, run
from engine_server.modeling.loading.refusal import ERRORS
from engine_server.modeling.loading.replacements import (
    ActivationKind,
    Choices,
    GateKind,
    activation_kind,
    activation_sites,
    defer_rotations,
    eps_of,
    fused_layer_norm,
    gate_kind,
    is_layer,
    is_layer_norm,
    is_norm,
    is_unweighted_norm,
    replace_activations,
    replace_gates,
    replace_layer_norms,
    replace_layers,
    replace_norms,
    replace_rotations,
    rotation_of,
)
from engine_server.modeling.loading.report import PassReport
from engine_server.modeling.loading.router_forms import form_of, fuse_routers, is_router
from engine_server.modeling.loading.sample import WINDOW, shortened_settings
from engine_server.modeling.memory.cache_spec import WindowSpec

# More than two windows of the copy.
NUM_TOKENS = 8
# Dimensions of the sample for a norm without weights.
UNWEIGHTED = 32
# Some tables of positions reserve the first two rows for padding.
POSITIONS = np.arange(NUM_TOKENS) + 2
logger = logging.getLogger(__name__)


class Trial:
    """A search for the replacements that don't change the output of a two-layer copy."""

    def __init__(self, copy: PreTrainedModel, kernels: KernelSet, device: torch.device) -> None:
        """copy: see `sample_copy`, with attention that calls our hook. Raises UnsupportedModelError if it can't run."""
        self.kernels = kernels
        self.device = device
        self._plain = copy
        self._expected = self._run(copy)

    def choose(self) -> Choices:
        """Return the possible replacements, found one kind after another."""
        # Verified on samples of their own: those of the copy have no weights.
        choices = Choices(experts=self._experts())
        steps: tuple[tuple[str, Callable[[Choices], Any]], ...] = (
            ("routers", self._routers),
            ("mlps", self._mlps),
            ("norms", self._norms),
            ("layer_norms", self._layer_norms),
            ("gates", self._gates),
            ("activations", self._activations),
            ("rotations", self._rotations),
            ("deferred", self._deferred),
            ("layers", self._layers),
        )
        for name, find in steps:
            found = replace(choices, **{name: find(choices)})
            if found == choices:
                continue
            lacking = self._lacking(name, found)
            if lacking:
                logger.error("no %s are replaced: in the two-layer copy none is of %s", name, lacking)
            elif self._agrees(found):
                choices = found
            else:
                logger.warning("no %s are replaced: it would change the output of the two-layer copy", name)
        return choices

    def _lacking(self, name: str, choices: Choices) -> str:
        """Return the names of the classes or functions whose choice replaces nothing in the copy."""
        _, reports = self._copy(choices)
        lacking = set(getattr(choices, name)) - reports[name].applied
        return ", ".join(sorted(map(name_of_choice, lacking)))

    def _experts(self) -> dict[type, type[GatedExperts]]:
        experts = {original_class(module): module for module in self._plain.modules() if has_experts(module)}
        found = {
            kind: class_for(module, self.kernels.experts, self.device) for kind, module in experts.items()
        }
        return {kind: own for kind, own in found.items() if own is not None}

    def _routers(self, choices: Choices) -> dict[type, RouterForm]:
        choose = self.kernels.choose
        if choose is None:
            return {}
        routers = {original_class(module): module for module in self._plain.modules() if is_router(module)}
        found = {kind: form_of(module, choose, self.device) for kind, module in routers.items()}
        return {kind: form for kind, form in found.items() if form is not None}

    def _mlps(self, choices: Choices) -> frozenset[type]:
        kinds = {type(module) for module in self._plain.modules() if is_gated_mlp(module)}
        return frozenset(kind for kind in kinds if self._agrees(replace(choices, mlps=frozenset((kind,)))))

    def _norms(self, choices: Choices) -> dict[type, float]:
        # A class may have both; with weights it shows its offset.
        norms = {
            type(module): module
            for is_one in (is_unweighted_norm, is_norm)
            for module in self._plain.modules()
            if is_one(module)
        }
        found = {kind: offset_of(norm, self.kernels, self.device) for kind, norm in norms.items()}
        return {kind: offset for kind, offset in found.items() if offset is not None}

    def _layer_norms(self, choices: Choices) -> frozenset[type]:
        if self.kernels.layer_norm is None:
            return frozenset()
        norms = {type(module): module for module in self._plain.modules() if is_layer_norm(module)}
        return frozenset(kind for kind, norm in norms.items() if is_same_layer_norm(norm, self.kernels))

    def _activations(self, choices: Choices) -> dict[ActivationKind, Activation]:
        modules = {activation_kind(one): one for _, _, one in activation_sites(self._copy(choices)[0])}
        found = {
            kind: kernel_of_activation(module, self.kernels, self.device) for kind, module in modules.items()
        }
        return {kind: activation for kind, activation in found.items() if activation is not None}

    def _gates(self, choices: Choices) -> dict[GateKind, Gate]:
        modules = {gate_kind(module): module for module in self._copy(choices)[0].modules()}
        found = {
            kind: kernel_of_gate(module, self.kernels, self.device)
            for kind, module in modules.items()
            if kind is not None
        }
        return {kind: gate for kind, gate in found.items() if gate is not None}

    def _rotations(self, choices: Choices) -> dict[Any, ChosenRotation]:
        originals = {rotation_of(module) for module in self._plain.modules()} - {None}
        found = {original: ChosenRotation(self.kernels, original) for original in originals if original}
        tried = replace(choices, rotations=found)
        if not found or self._lacking("rotations", tried):
            return found
        self._agrees(tried)  # each chooses its kernel at its first call
        return {
            original: rotation
            for original, rotation in found.items()
            if rotation.chosen not in (None, original)
        }

    def _deferred(self, choices: Choices) -> frozenset[Any]:
        found = {original for original, rotation in choices.rotations.items() if rotation.deferrable}
        return frozenset(one for one in found if self._agrees(replace(choices, deferred=frozenset((one,)))))

    def _layers(self, choices: Choices) -> frozenset[type]:
        kinds = {type(module) for module in self._copy(choices)[0].modules() if is_layer(module)}
        return frozenset(kind for kind in kinds if self._agrees(replace(choices, layers=frozenset((kind,)))))

    def _agrees(self, choices: Choices) -> bool:
        """Check that the copy's output is the same up to rounding."""
        try:
            found = self._run(self._copy(choices)[0])
        except misfits() as error:
            # Most are of a module with other inputs or outputs, as some models have.
            fails = isinstance(error, RuntimeError) or type(error).__module__.startswith("triton.")
            level = logging.WARNING if fails else logging.DEBUG
            logger.log(level, "a replacement fails on the two-layer copy: %s", error)
            return False
        slack = max(1e-4, 16 * torch.finfo(found.dtype).eps)
        scale = self._expected.float().std().item()
        return torch.allclose(found, self._expected, rtol=slack, atol=slack * scale)

    def _copy(self, choices: Choices) -> tuple[PreTrainedModel, dict[str, PassReport]]:
        """Return a copy with these choices, and the reports of the passes by kind."""
        copy = deepcopy(self._plain)
        return copy, {
            "routers": fuse_routers(copy, self.kernels.choose, choices.routers, as_loaded),
            "mlps": fuse_mlps(copy, choices.mlps),
            "norms": replace_norms(copy, self.kernels, choices.norms),
            "layer_norms": replace_layer_norms(copy, self.kernels, choices.layer_norms),
            "gates": replace_gates(copy, choices.gates),
            "activations": replace_activations(copy, choices.activations),
            "rotations": replace_rotations(copy, choices.rotations),
            "deferred": defer_rotations(copy, choices.deferred),
            "layers": replace_layers(copy, choices.layers),
        }

    def _run(self, copy: PreTrainedModel) -> Tensor:
        """Return the hidden states of some tokens."""
        return run(backbone(copy), Probe(), POSITIONS, self.device, {})

    def check_attention(self, original: Tensor | None) -> None:
        """Raise UnsupportedModelError if the copy attends otherwise than by transformers' own attention.

        original: see `original_states`.
        """
        copy, seen = nn.Module.float(deepcopy(self._plain)), Probe()
        found = run(backbone(copy), seen, POSITIONS, self.device, {})
        layers = copy.config.get_text_config().num_hidden_layers
        seen.check_calls(f"a copy of {type(copy).__name__}", layers, numbered=False)
        if original is None:
            return
        equal = torch.allclose(found, original, rtol=1e-3, atol=1e-3 * original.std().item())
        if not equal or (
            has_one_window(copy) and {shape.spec for shape in seen.shapes.values()} != {WindowSpec(WINDOW)}
        ):
            windows = " or ".join(shortened_settings(copy.config.get_text_config()))
            where = f" beyond its {windows}" if windows else ""
            raise UnsupportedModelError(
                f"{type(copy).__name__} does not attend as in transformers{where}; it would be computed wrongly"
            )


def name_of_choice(key: object) -> str:
    """Return the name of the class or function by which a choice is made, without its activation or settings."""
    named: Any = key[0] if isinstance(key, tuple) else key
    name: str = named.__name__
    return name


def has_one_window(copy: PreTrainedModel) -> bool:
    """Return True if transformers keeps no more than the window in any layer's cache."""
    text = copy.config.get_text_config()
    return getattr(text, "layer_types", None) is None and getattr(text, "sliding_window", None) == WINDOW


@torch.inference_mode()
def original_states(copy: PreTrainedModel, device: torch.device) -> Tensor | None:
    """Return the hidden states of the trial's tokens in float32, by transformers' own attention.

    copy: see `sample_copy`, as transformers made it. None if that attention fails, or is known to be wrong.
    """
    if getattr(copy.config, "alibi", False):
        return None  # in transformers 5.17 the eager attention of Falcon adds ALiBi twice
    original = nn.Module.float(deepcopy(copy))
    tokens, positions = (torch.from_numpy(one).to(device)[None] for one in (np.arange(NUM_TOKENS), POSITIONS))
    try:
        original.set_attn_implementation("eager")
        states: Tensor = backbone(original)(input_ids=tokens, position_ids=positions, use_cache=False)[0]
    except ERRORS as error:
        logger.warning(
            "the attention of a two-layer copy is not compared with that of transformers: %s", error
        )
        return None
    return states


@torch.inference_mode()
def offset_of(norm: nn.Module, kernels: KernelSet, device: torch.device) -> float | None:
    """Return the offset with which FusedRMSNorm computes the same as `norm`, or None; 0 for one without weights."""
    if is_unweighted_norm(norm):
        sample = rows_of(torch.ones(UNWEIGHTED, device=device))
        return 0.0 if same(UnweightedRMSNorm(kernels, eps_of(norm))(sample), norm(sample), 0) else None
    weight, sample = norm.get_parameter("weight"), sample_rows(norm)
    expected = norm(sample)
    for offset in kernels.offsets:
        if same(FusedRMSNorm(kernels, weight, eps_of(norm), offset)(sample), expected, 0):
            return offset
    return None


@torch.inference_mode()
def is_same_layer_norm(norm: nn.Module, kernels: KernelSet) -> bool:
    """Return True if FusedLayerNorm computes the same as `norm`."""
    sample = sample_rows(norm)
    try:
        expected = norm(sample)
    except misfits():
        return False  # of images, whose channels are not last
    return same(fused_layer_norm(norm, kernels)(sample), expected, 1)


def sample_rows(norm: nn.Module) -> Tensor:
    """Return rows with a mean other than 0, which a LayerNorm removes, one of them so small that eps matters."""
    return rows_of(norm.get_parameter("weight"))


def rows_of(weight: Tensor) -> Tensor:
    """Return the rows of `sample_rows` for a norm with this weight."""
    rows = torch.linspace(-1, 2, len(weight)) * torch.tensor([1e-3, 1, 30])[:, None]
    return rows[None].to(weight)


@torch.inference_mode()
def kernel_of_activation(module: Any, kernels: KernelSet, device: torch.device) -> Activation | None:
    """Return the kernel that computes the same as a module, or None."""
    sample = torch.linspace(-20, 20, 401, device=device)
    expected = module(sample.clone())
    for activation in kernels.activations:
        if same(activation(sample), expected, 1):
            return activation
    return None


@torch.inference_mode()
def kernel_of_gate(module: Any, kernels: KernelSet, device: torch.device) -> Gate | None:
    """Return the kernel that computes the same as a module's gate, or None."""
    sample = torch.linspace(-20, 20, 400, device=device).view(2, -1)
    expected = module._apply_gate(sample)
    for gate in kernels.gates:
        if same(gate(sample.clone()), expected, 1):
            return gate
    return None
