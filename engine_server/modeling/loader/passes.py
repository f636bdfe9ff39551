"""The passes over a model, in their order: see "Passes over a model" in docs/engine.md.

Passes before the loading see transformers' model on the meta device and replace its modules. Then transformers reads
the checkpoint into the replaced modules. The pass after the loading ties layers and completes their weights.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn
from transformers import PreTrainedModel

from engine_server.config import QuantizationConfig
from engine_server.modeling.device.communicator import Communicator
from engine_server.modeling.formats.products import ProductTable
from engine_server.modeling.layers.formatted_experts import FormattedExperts
from engine_server.modeling.loader.attention import replace_attention
from engine_server.modeling.loader.encoder import encoder_aside
from engine_server.modeling.loader.invariance import check_modules
from engine_server.modeling.loader.rounding import round_weights
from engine_server.modeling.loader.sample import sample_copy
from engine_server.modeling.loader.sequences import check_sequences
from engine_server.modeling.loader.sharding import shard
from engine_server.modeling.loader.trial import Trial, original_states
from engine_server.modeling.loader.weights import (
    defer_tied,
    keep_outputs,
    replace_embedding,
    replace_linears,
)
from engine_server.modeling.platform.interface import Platform
from engine_server.modeling.replacements.experts import EXPERTS
from engine_server.modeling.replacements.order import REPLACEMENTS
from engine_server.modeling.replacements.projections import fuse_projections
from engine_server.modeling.replacements.recurrences import replace_recurrences
from engine_server.modeling.replacements.replacement import Choices, Setup
from engine_server.modeling.replacements.report import PassReport, Tally
from engine_server.modeling.replacements.ropes import replace_ropes


@dataclass(frozen=True)
class LoadPlan:
    """The inputs of the passes: device, ranks and options."""

    platform: Platform
    ranks: Communicator
    # Results are required to be bitwise independent of batch composition.
    batch_invariant: bool
    # Our versions, which were verified on the two-layer copy.
    choices: Choices
    # Dense weights are rounded to this form; None: they stay dense.
    quantization: QuantizationConfig | None = None
    # Tokens whose logits alone the head computes; empty: all.
    score_tokens: Sequence[int] = ()
    # The encoder of pictures is loaded, if the model has one.
    loads_encoder: bool = True

    @property
    def layout(self) -> ProductTable:
        """The layout of the weights of linear layers."""
        return self.platform.fixed_order_layout if self.batch_invariant else self.platform.weight_layout

    @property
    def formatted(self) -> frozenset[type]:
        """Classes of experts whose weights are in a layout, like those of linear layers."""
        experts = self.choices.get(EXPERTS, {})
        return frozenset(kind for kind, own in experts.items() if issubclass(own, FormattedExperts))

    def replace(self, model: nn.Module, holding_weights: bool) -> list[PassReport]:
        """Replace the modules that hold weights, or all others, by our versions."""
        setup = Setup(self.platform.module_kernels, self.platform.device, self.layout, self.batch_invariant)
        return [
            kind.apply(model, self.choices.get(kind, {}), setup)
            for kind in REPLACEMENTS
            if kind.holds_weights == holding_weights
        ]


def replace_modules(model: PreTrainedModel, plan: LoadPlan) -> list[PassReport]:
    """Run the passes before the loading over a model on the meta device, or over one with weights."""
    with encoder_aside(model):
        return replace_modules_of_text(model, plan)


def replace_modules_of_text(model: PreTrainedModel, plan: LoadPlan) -> list[PassReport]:
    """Run the passes before the loading over a model without its encoder."""
    return [
        replace_attention(model),
        replace_recurrences(model, plan.platform.module_kernels),
        replace_linears(model, plan.layout),
        replace_embedding(model),
        *plan.replace(model, holding_weights=True),
        shard(model, plan.ranks),
        keep_outputs(model, plan.score_tokens),
        round_weights(model, plan.quantization, plan.layout),
        fuse_projections(model),
        *plan.replace(model, holding_weights=False),
        replace_ropes(model, plan.platform),
        check_sums(model, plan),
        defer_tied(model),
    ]


def verified_choices(model: PreTrainedModel, platform: Platform, context: int = sys.maxsize) -> Choices:
    """Return the replacements that don't change the output of a two-layer copy of `model`.

    model: on the meta device, as transformers built it. context: the longest sequence, in tokens. Raises
    UnsupportedModelError for a model whose copy can't run, or attends otherwise than by transformers' own attention.
    """
    with encoder_aside(model):
        copy = sample_copy(model, platform.device, context)
    original = original_states(copy, platform.device)
    replace_attention(copy)
    replace_recurrences(copy, platform.module_kernels)
    trial = Trial(copy, platform.module_kernels, platform.device)
    trial.check_attention(original)
    if trial.recurrent:
        check_sequences(copy, platform)
    return trial.choose()


def check_sums(model: PreTrainedModel, plan: LoadPlan) -> PassReport:
    """Raise UnsupportedModelError for modules whose order of summation may depend on the batch."""
    tally = Tally("fixed order of sums")
    if plan.batch_invariant:
        check_modules(model, plan.platform)
    return tally.report()
