"""The passes that give layers their weights: layers that receive them before the loading, and completion after it."""

from collections import defaultdict
from collections.abc import Sequence
from typing import TypeGuard

from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from engine_server.modeling.attention.interface import UnsupportedModelError
from engine_server.modeling.formats.dense import as_parameter
from engine_server.modeling.formats.quantized_tensor import QuantizedTensor, dense, format_of
from engine_server.modeling.formats.tied import tied
from engine_server.modeling.formats.weight_format import WeightLayout
from engine_server.modeling.layers.embedding import Embedding, receive_embeddings
from engine_server.modeling.layers.linear import FusedLinear, Linear
from engine_server.modeling.layers.weight_layer import WeightLayer, original_class
from engine_server.modeling.replacements.report import PassReport, Tally

# Subclasses of nn.Linear that compute the same, but round before they add the bias.
LIKE_LINEAR = ("FalconLinear",)


def is_plain(module: nn.Module) -> TypeGuard[nn.Linear | Conv1D]:
    """Return True for a linear layer that computes nothing else."""
    return type(module) in (nn.Linear, Conv1D) or type(module).__name__ in LIKE_LINEAR


def replace_linears(model: nn.Module, layout: WeightLayout) -> PassReport:
    """Replace every nn.Linear and Conv1D. Other subclasses are kept, since they compute differently."""
    tally = Tally("linear layers")
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if is_plain(child):
                setattr(parent, name, Linear.of(child, layout))
                tally.replaced(type(child), "Linear")
            elif isinstance(child, nn.Linear) and not isinstance(child, Linear):
                tally.left(type(child), "a subclass of nn.Linear")
    return tally.report()


def replace_embedding(model: PreTrainedModel) -> PassReport:
    """Replace the embedding of the input tokens. Other tables are kept, since they are neither tied nor cut."""
    tally = Tally("token embedding")
    embedding = model.get_input_embeddings()
    if isinstance(embedding, nn.Embedding):
        tally.replaced(type(embedding), "Embedding")
        receive_embeddings(embedding)
    else:
        tally.left(type(embedding), "not an nn.Embedding")
    return tally.report()


def keep_outputs(model: PreTrainedModel, tokens: Sequence[int]) -> PassReport:
    """Make the head compute the logits of these tokens alone; of all without any."""
    tally = Tally("answers of the head")
    if tokens:
        head: nn.Module | None = model.get_output_embeddings()  # type: ignore[no-untyped-call]
        if not isinstance(head, Linear):
            raise UnsupportedModelError(f"{type(model).__name__} has no linear head, which score tokens need")
        head.keep(tokens)
        tally.replaced(original_class(head), f"{len(tokens)} outputs")
    return tally.report()


def defer_tied(model: PreTrainedModel) -> PassReport:
    """Make layers that may be tied keep their whole weights until `settle`, so that transformers can tie them."""
    tally = Tally("tied weights kept until the end")
    for name in {*model.all_tied_weights_keys, *model.all_tied_weights_keys.values()}:
        layer = model.get_submodule(name.rpartition(".")[0])
        if isinstance(layer, WeightLayer):
            layer.deferred = True
            tally.replaced(original_class(layer), "deferred")
    return tally.report()


def settle(model: nn.Module) -> PassReport:
    """Tie layers that share a parameter, and give every layer the weights that it has not received."""
    tally = Tally("tie")
    layers = [module for module in model.modules() if isinstance(module, WeightLayer)]
    sharing: dict[int, list[Linear]] = defaultdict(list)
    for layer in layers:
        if isinstance(layer, Linear) and layer.format is None:
            sharing[id(layer.weight)].append(layer)
    for embedding in layers:
        if not isinstance(embedding, Embedding) or embedding.format is not None:
            continue
        linears, whole = sharing[id(embedding.weight)], format_of(embedding.weight, None)
        embedding.take(whole)
        for linear in linears:
            if tie(embedding, linear):
                tally.replaced(original_class(linear), "the format of the embedding")
            else:
                tally.left(original_class(linear), "another part of the weight, or a bias")
    dequantise_others(model)
    for layer in sorted(layers, key=lambda layer: isinstance(layer, FusedLinear)):  # after its parts
        layer.settle()
    return tally.report()


def dequantise_others(model: nn.Module) -> None:
    """Dequantise parameters of modules that are no layers of ours."""
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if not isinstance(module, WeightLayer) and isinstance(parameter, QuantizedTensor):
                module._parameters[name] = as_parameter(dense(parameter))


def tie(embedding: Embedding, linear: Linear) -> bool:
    """Give both one format, unless this rank has different parts of their weight, or the layer only some rows."""
    rows = embedding.format
    same = (embedding.sharding and embedding.sharding.cut) == (linear.sharding and linear.sharding.cut)
    if rows is None or linear.bias is not None or linear.transposed or linear.kept is not None or not same:
        return False
    linear.format = embedding.format = tied(rows, linear.layout)
    return True
