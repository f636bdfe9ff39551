"""Routers of mixtures whose choice of experts is one kernel."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from engine_server.modeling.formats.dense import DenseFormat
from engine_server.modeling.formats.weight_format import WeightLayout
from engine_server.modeling.layers.kernel_sets.kernel_set import Choose
from engine_server.modeling.layers.weight_layer import derived_class, original_class


class RouterForm(NamedTuple):
    """The weights that a class of routers gives its choices."""

    # Softmax is that of the chosen experts alone.
    normalised: bool
    # The dtype of the weights; None: that of the logits.
    dtype: torch.dtype | None


class FusedRouter(nn.Module):
    """Linear logits, and the softmax of the largest of them.

    A token's choice is bitwise independent of other tokens if the products of the layout are.
    """

    form: RouterForm
    choose: Choose
    layout: WeightLayout
    # Experts of a token.
    top_k: int

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits [tokens, experts], and weights and experts [tokens, chosen]."""
        weight = self.get_parameter("weight")
        format = self.layout(DenseFormat(weight, self._parameters.get("bias")))
        logits = format.apply(hidden_states.reshape(-1, weight.shape[1]))
        return logits, *self.choose(logits, self.top_k, self.form.normalised, self.form.dtype or logits.dtype)


def fuse_router(module: nn.Module, form: RouterForm, choose: Choose, layout: WeightLayout) -> None:
    """Make a router, whose class computes what `form` says, choose by a kernel."""
    module.__class__ = derived_class((FusedRouter, type(module)), original_class(module))
    assert isinstance(module, FusedRouter)
    module.form, module.choose, module.layout = form, choose, layout
