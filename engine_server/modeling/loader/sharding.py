"""The pass that reduces a model to the part that one rank computes, by the model's own `tp_plan`."""

import re
from collections.abc import Callable
from functools import partial

from torch import nn
from transformers import PreTrainedModel

from engine_server.modeling.attention.interface import UnsupportedModelError
from engine_server.modeling.device.communicator import Communicator
from engine_server.modeling.formats.weight_format import Cut
from engine_server.modeling.layers.embedding import Embedding
from engine_server.modeling.layers.experts import Experts, receive_parameters
from engine_server.modeling.layers.linear import Linear
from engine_server.modeling.layers.sharding import Columns, GatheredColumns, Rows, Vocabulary
from engine_server.modeling.replacements.report import PassReport, Tally


def shard(model: PreTrainedModel, ranks: Communicator) -> PassReport:
    """Set the part of each layer that this rank computes.

    Raises UnsupportedModelError for a model without a plan, and ValueError with both numbers for a size that the
    number of ranks doesn't divide.
    """
    tally, styles = Tally("shard"), Styles(ranks)
    if ranks.size == 1:
        return tally.report()
    name, plan = type(model).__name__, dict(model.tp_plan)
    if not any("*" in path for path in plan):
        raise UnsupportedModelError(
            f"tensor_parallel_size is {ranks.size}; {name} has no tp_plan, which sharing it among GPUs needs"
        )
    share(model.config.get_text_config().num_attention_heads, ranks.size, "attention heads")
    paths = {module: path for path, module in model.named_modules()}
    plan[paths[model.get_input_embeddings()]] = "embedding_rowwise"
    unknown = set(plan.values()) - STYLES.keys() - WHOLE
    if unknown:
        raise UnsupportedModelError(
            f"the tp_plan of {name} contains {', '.join(sorted(unknown))}, which is not supported"
        )
    for module, path in paths.items():
        if getattr(module, "activation_sparsity", 0):  # Gemma 3n
            raise UnsupportedModelError(
                f"tensor_parallel_size is {ranks.size}; {path} of {name} keeps the largest of all its activations, "
                f"of which a rank has only a part"
            )
        for child in (*module._parameters, *module._modules):
            style = plan.get(re.sub(r"\.\d+(?=\.)", ".*", f"{path}.{child}".removeprefix(".")))
            if style in STYLES:
                STYLES[style](styles, module, child)
                tally.replaced(type(module), f"{child} {style}")
    return tally.report()


def share(count: int, size: int, what: str) -> int:
    """Return one rank's share. Raises ValueError with both numbers."""
    if count % size:
        raise ValueError(f"tensor_parallel_size is {size}, which doesn't divide the model's {count} {what}")
    return count // size


class Styles:
    """The styles of a plan, one method for each, applied to a child of a module: a layer or a parameter."""

    def __init__(self, ranks: Communicator) -> None:
        self.ranks = ranks

    def columns(self, module: nn.Module, child: str) -> None:
        """Give each rank some outputs, of attention whole heads. KV heads are copied if there are fewer than ranks."""
        layer, size = getattr(module, child), self.ranks.size
        if not isinstance(layer, nn.Module):
            return self.split(module, child, max(layer.ndim - 2, 0))
        linear = linear_of(module, child)
        dim = getattr(
            module, "v_head_dim" if child == "v_proj" else "head_dim", getattr(module, "head_dim", 1)
        )
        heads = linear.out_features // (dim if linear.out_features % dim == 0 else 1)
        copied = heads < size and size % heads == 0
        if not copied:
            share(heads, size, f"heads or features of {child}")
        cut = self._cut(0, heads if copied else size)
        linear.sharding, linear.out_features = Columns(cut), cut.width(linear.out_features)

    def gathered_columns(self, module: nn.Module, child: str) -> None:
        """Give each rank some outputs, which are then gathered. The last rank's are padded."""
        linear, cut = linear_of(module, child), self._cut(0)
        linear.sharding = GatheredColumns(cut, self.ranks, linear.out_features)
        linear.out_features = cut.width(linear.out_features)

    def rows(self, module: nn.Module, child: str) -> None:
        """Give each rank some inputs, and rank 0 the bias."""
        layer = getattr(module, child)
        if not isinstance(layer, nn.Module):
            return self.split(module, child, layer.ndim - 1)
        linear = linear_of(module, child)
        linear.in_features = share(linear.in_features, self.ranks.size, "features of weight")
        linear.sharding = Rows(self._cut(1), self.ranks, linear.in_features)

    def split(self, module: nn.Module, name: str, dim: int, blocks: int = 1) -> None:
        """Give each rank an equal part of each of a parameter's `blocks`, such as gate and up of experts."""
        parameter = getattr(module, name)
        share(parameter.shape[dim] // blocks, self.ranks.size, f"features of {name}")
        cut = self._cut(dim % parameter.ndim)._replace(blocks=blocks)
        receive_parameters(module).cuts[name] = cut

    def summed(self, module: nn.Module, child: str) -> None:
        """Sum the results of experts over the ranks, each of which has a part."""
        experts = getattr(module, child)
        if not isinstance(experts, Experts):
            raise UnsupportedModelError(
                f"tensor_parallel_size is {self.ranks.size}; {type(experts).__name__} would have to be summed, "
                "which is known of experts alone"
            )
        experts.ranks = self.ranks

    def vocabulary(self, module: nn.Module, child: str) -> None:
        """Give each rank some tokens. The last rank's are padded."""
        embedding, cut = getattr(module, child), self._cut(0)
        assert isinstance(embedding, Embedding)
        embedding.padding_idx = None  # the token may belong to another rank
        embedding.num_embeddings = cut.width(embedding.num_embeddings)
        embedding.sharding = Vocabulary(cut, self.ranks, embedding.num_embeddings)

    def _cut(self, dim: int, pieces: int | None = None) -> Cut:
        """Return this rank's piece; if there are fewer pieces than ranks, neighbouring ranks have the same."""
        pieces = pieces or self.ranks.size
        return Cut(dim, pieces, self.ranks.rank * pieces // self.ranks.size)


def linear_of(module: nn.Module, child: str) -> Linear:
    """Return a child that is a linear layer. Raises UnsupportedModelError for another."""
    linear = getattr(module, child)
    if not isinstance(linear, Linear):
        raise UnsupportedModelError(f"{child} of {type(module).__name__} can't be shared among GPUs")
    return linear


# Styles of layers that every rank has whole.
WHOLE = frozenset(("local_params", "mla_kv_a_proj", "replicate", "replicated_with_grad_allreduce"))
STYLES: dict[str, Callable[[Styles, nn.Module, str], None]] = {
    "all_reduce": Styles.summed,
    "colwise": Styles.columns,
    "colwise_gather_output": Styles.gathered_columns,
    "embedding_rowwise": Styles.vocabulary,
    "moe_tp_experts": Styles.summed,
    "packed_colwise": partial(Styles.split, dim=-2, blocks=2),
    "packed_rowwise": partial(Styles.split, dim=-1, blocks=2),
    "rowwise": Styles.rows,
    "rowwise_split_input": Styles.rows,
}
