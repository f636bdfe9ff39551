"""The pass that makes layers round dense weights to fewer bits when they receive them."""

from functools import partial

from torch import nn
from transformers import PreTrainedModel

from engine_server.config import QuantizationConfig
from engine_server.modeling.formats.codecs import E4M3, INT4, INT8
from engine_server.modeling.formats.rounding import rounded_to_float8, rounded_to_integers
from engine_server.modeling.formats.weight_format import WeightFormat, WeightLayout
from engine_server.modeling.layers.embedding import Embedding
from engine_server.modeling.layers.experts import Experts
from engine_server.modeling.layers.formatted_experts import FormattedExperts
from engine_server.modeling.layers.gated_experts import WEIGHTS
from engine_server.modeling.layers.linear import Linear
from engine_server.modeling.layers.weight_layer import original_class
from engine_server.modeling.loader.backbone import backbone
from engine_server.modeling.replacements.report import PassReport, Tally

CODECS = {"int8": INT8, "int4": INT4, "fp8": E4M3}


def round_weights(
    model: PreTrainedModel, quantization: QuantizationConfig | None, layout: WeightLayout
) -> PassReport:
    """Set the layout of the base model's linear layers and experts to one that rounds first.

    With `quantization.head`, that of embedding and head too.

    layout: applied to the rounded weights. Raises ValueError for a group size that a layer's inputs are no multiple of.
    """
    tally = Tally("round weights")
    if quantization is None:
        return tally.report()
    method, group = quantization.method, quantization.group_size
    rounded = rounding(method, group)
    for path, module in backbone(model).named_modules():
        if isinstance(module, Linear):
            check_group(module.in_features, path, method, group)
            module.layout = partial(after, rounded, layout)
            tally.replaced(original_class(module), method)
        elif isinstance(module, FormattedExperts):
            for name in WEIGHTS:
                check_group(module.num_inputs(name), f"{path}.{name}", method, group)
            module.layout = partial(after, rounded, layout)
            tally.replaced(original_class(module), method)
        elif isinstance(module, Experts):
            tally.left(original_class(module), "transformers' forward computes with dense weights")
    if quantization.head:
        head: nn.Module | None = model.get_output_embeddings()  # type: ignore[no-untyped-call]
        embedding = model.get_input_embeddings()
        rounded = rounding("int8", None)
        if isinstance(head, Linear):
            head.layout = partial(after, rounded, layout)
            tally.replaced(original_class(head), "int8")
        if isinstance(embedding, Embedding):
            embedding.layout = rounded
            tally.replaced(original_class(embedding), "int8")
    return tally.report()


def rounding(method: str, group: int | None) -> WeightLayout:
    """Return the function that rounds a dense weight."""
    if method == "fp8":
        return rounded_to_float8
    return partial(rounded_to_integers, bits=CODECS[method].bits, group=group)


def after(rounded: WeightLayout, layout: WeightLayout, format: WeightFormat) -> WeightFormat:
    """Return `format` in `layout`, rounded first."""
    return rounded(format).arranged(layout)


def check_group(inputs: int, path: str, method: str, group: int | None) -> None:
    """Raise ValueError if a weight's inputs can't be divided into groups, or its 4-bit codes into bytes."""
    if group is not None and inputs % group:
        raise ValueError(
            f"quantization_group_size is {group}, which doesn't divide the {inputs} inputs of {path}"
        )
    if method == "int4" and inputs % 2:
        raise ValueError(f"quantization is int4; the {inputs} inputs of {path} are not an even number")
