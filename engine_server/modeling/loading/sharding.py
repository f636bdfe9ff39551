"""Tensor parallelism: what one rank keeps of a model, by the model's own `tp_plan`.

Megatron-LM (Shoeybi et al., 2019): of a column-parallel layer each rank computes some outputs; a row-parallel one
takes those as they are, and its outputs are summed over the ranks.
"""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary
from transformers import PreTrainedModel

from engine_server.modeling.attention.interface import UnsupportedModelError
from engine_server.modeling.communicator import Communicator


class Summed(nn.Module):
    """What each rank computes a part of: a linear layer, from some of its inputs, or experts, each a little."""

    def __init__(self, module: nn.Module, ranks: Communicator) -> None:
        super().__init__()
        self.module, self.ranks = module, ranks
        self.width = getattr(module, "in_features", None)  # of this rank's inputs; others may come along

    def forward(self, inputs: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if self.width is not None and inputs.shape[-1] != self.width:
            inputs = inputs.narrow(-1, self.ranks.rank * self.width, self.width)
        return self.ranks.sum(self.module(inputs, *args, **kwargs))


class Gathered(nn.Module):
    """A linear layer of which each rank has some outputs, and all are wanted: [..., in] to [..., width]."""

    def __init__(self, linear: nn.Linear, ranks: Communicator, width: int) -> None:
        super().__init__()
        self.linear, self.ranks, self.width = linear, ranks, width

    def forward(self, inputs: Tensor) -> Tensor:
        return self.ranks.gather(self.linear(inputs))[..., : self.width]


class VocabParallelEmbedding(nn.Module):
    """An embedding of which each rank has some tokens: [...] to [..., hidden]."""

    def __init__(self, embedding: nn.Embedding, ranks: Communicator) -> None:
        super().__init__()
        embedding.padding_idx = None  # it may be another rank's
        self.embedding, self.ranks = embedding, ranks

    def forward(self, token_ids: Tensor) -> Tensor:
        rows = self.embedding.num_embeddings
        token_ids = token_ids - self.ranks.rank * rows
        others = (token_ids < 0) | (token_ids >= rows)
        states: Tensor = self.embedding(token_ids.masked_fill(others, 0))
        return self.ranks.sum(states.masked_fill(others.unsqueeze(-1), 0))


def shard(model: PreTrainedModel, ranks: Communicator) -> None:
    """Leave of the model what this rank computes; where every rank does so, outputs are the whole model's.

    Column-parallel layers stay nn.Linear. Raises UnsupportedModelError for a model without a plan, and ValueError
    with both numbers where there is something that the ranks can't share equally.
    """
    name, plan = type(model).__name__, dict(model.tp_plan)
    if not any("*" in path for path in plan):
        raise UnsupportedModelError(
            f"tensor_parallel_size is {ranks.size}; {name} has no tp_plan, by which GPUs could share it"
        )
    share(model.config.get_text_config().num_attention_heads, ranks.size, "attention heads")
    paths = {module: path for path, module in model.named_modules()}
    plan[paths[model.get_input_embeddings()]] = "embedding_rowwise"
    unknown = set(plan.values()) - STYLES.keys() - WHOLE
    if unknown:
        raise UnsupportedModelError(
            f"the tp_plan of {name} says {', '.join(sorted(unknown))}; it isn't known"
        )
    cuts = Cuts(ranks)
    for module, path in paths.items():
        for child in (*module._parameters, *module._modules):
            style = plan.get(re.sub(r"\.\d+(?=\.)", ".*", f"{path}.{child}".removeprefix(".")))
            if style in STYLES:
                STYLES[style](cuts, module, child)


def share(count: int, size: int, what: str) -> int:
    """One rank's share. Raises ValueError with both numbers."""
    if count % size:
        raise ValueError(f"tensor_parallel_size is {size}, which doesn't divide the model's {count} {what}")
    return count // size


class Cuts:
    """Does to a module's child, a layer or a parameter, what a style of plan says. What layers share stays shared."""

    def __init__(self, ranks: Communicator) -> None:
        self.ranks = ranks
        self._parts = WeakTensorKeyDictionary()  # so that what was cut is freed

    def columns(self, module: nn.Module, child: str) -> None:
        """Each rank some outputs, of attention whole heads; KV heads that are fewer than ranks are copied."""
        layer, size = getattr(module, child), self.ranks.size
        if not isinstance(layer, nn.Linear):
            return self.split(module, child, max(layer.ndim - 2, 0))
        dim = getattr(
            module, "v_head_dim" if child == "v_proj" else "head_dim", getattr(module, "head_dim", 1)
        )
        heads = layer.out_features // (dim if layer.out_features % dim == 0 else 1)
        copied = heads < size and size % heads == 0
        if not copied:
            share(heads, size, f"heads or features of {child}")
        self._keep_outputs(layer, heads if copied else size)

    def gathered_columns(self, module: nn.Module, child: str) -> None:
        """Each rank some outputs, of which all are gathered; the last one's are filled up."""
        linear = getattr(module, child)
        width = linear.out_features
        self._keep_outputs(linear, self.ranks.size)
        setattr(module, child, Gathered(linear, self.ranks, width))

    def rows(self, module: nn.Module, child: str) -> None:
        """Each rank some inputs; a bias is the first one's."""
        layer = getattr(module, child)
        if not isinstance(layer, nn.Linear):
            return self.split(module, child, layer.ndim - 1)
        self.split(layer, "weight", 1)
        layer.in_features = layer.weight.shape[1]
        if self.ranks.rank > 0:
            layer.bias = None  # type: ignore[assignment]
        self.summed(module, child)

    def split(self, module: nn.Module, name: str, dim: int, packed: int = 1) -> None:
        """Each rank an equal part of a parameter; of experts' gates and ups, which lie `packed`, some of either."""
        share(module._parameters[name].shape[dim] // packed, self.ranks.size, f"features of {name}")  # type: ignore[union-attr]
        self._keep(module, name, dim, self.ranks.size, packed)

    def summed(self, module: nn.Module, child: str) -> None:
        """Outputs of parts that were cut already."""
        setattr(module, child, Summed(getattr(module, child), self.ranks))

    def vocabulary(self, module: nn.Module, child: str) -> None:
        """Each rank some tokens, the last one's filled up."""
        embedding = getattr(module, child)
        self._keep(embedding, "weight", 0, self.ranks.size)
        embedding.num_embeddings = len(embedding.weight)
        setattr(module, child, VocabParallelEmbedding(embedding, self.ranks))

    def _keep_outputs(self, linear: nn.Linear, pieces: int) -> None:
        for name in linear._parameters:
            self._keep(linear, name, 0, pieces)
        linear.out_features = len(linear.weight)

    def _keep(self, module: nn.Module, name: str, dim: int, pieces: int, packed: int = 1) -> None:
        """Keep this rank's piece of a parameter along `dim`, of each of `packed` tensors that lie one behind the other.

        Pieces are of equal size: what the last one lacks is filled up with anything.
        """
        whole = module._parameters[name]
        if whole is None:
            return
        if whole not in self._parts:
            length = whole.shape[dim] // packed
            width, number = -(-length // pieces), self.ranks.rank * pieces // self.ranks.size
            own = torch.arange(number * width, (number + 1) * width).clamp(max=length - 1)
            places = (own + torch.arange(packed)[:, None] * length).flatten()
            self._parts[whole] = nn.Parameter(whole.index_select(dim, places), requires_grad=False)
        module._parameters[name] = self._parts[whole]


# Of these every rank has all.
WHOLE = frozenset(("local_params", "mla_kv_a_proj", "replicate", "replicated_with_grad_allreduce"))
STYLES: dict[str, Callable[[Cuts, nn.Module, str], None]] = {
    "all_reduce": Cuts.summed,
    "colwise": Cuts.columns,
    "colwise_gather_output": Cuts.gathered_columns,
    "embedding_rowwise": Cuts.vocabulary,
    "moe_tp_experts": Cuts.summed,
    "packed_colwise": partial(Cuts.split, dim=-2, packed=2),
    "packed_rowwise": partial(Cuts.split, dim=-1, packed=2),
    "rowwise": Cuts.rows,
    "rowwise_split_input": Cuts.rows,
}
