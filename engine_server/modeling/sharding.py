"""Tensor parallelism: what one rank keeps of a model, by the model's own `tp_plan`.

Megatron-LM (Shoeybi et al., 2019): of a column-parallel layer each rank computes some outputs; a row-parallel one
takes those as they are, and its outputs are summed over the ranks.
"""

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary
from transformers import PreTrainedModel

from engine_server.modeling.attention import UnsupportedModelError
from engine_server.modeling.ranks import Ranks


class RowParallel(nn.Module):
    """A linear layer of which each rank has some inputs: [..., in] or [..., in of this rank] to [..., out]."""

    def __init__(self, linear: nn.Linear, ranks: Ranks) -> None:
        super().__init__()
        self.linear, self.ranks, self.width = linear, ranks, linear.in_features
        self.bias, linear.bias = linear.bias, None  # type: ignore[assignment]  # once, not once for each rank

    def forward(self, inputs: Tensor) -> Tensor:
        if inputs.shape[-1] != self.width:
            inputs = inputs.narrow(-1, self.ranks.rank * self.width, self.width)
        output = self.ranks.sum(self.linear(inputs))
        return output if self.bias is None else output + self.bias


class Gathered(nn.Module):
    """A linear layer of which each rank has some outputs, and all are wanted: [..., in] to [..., width]."""

    def __init__(self, linear: nn.Linear, ranks: Ranks, width: int) -> None:
        super().__init__()
        self.linear, self.ranks, self.width = linear, ranks, width

    def forward(self, inputs: Tensor) -> Tensor:
        return self.ranks.gather(self.linear(inputs))[..., : self.width]


class Summed(nn.Module):
    """Experts of which each rank computes a part of every one."""

    def __init__(self, module: nn.Module, ranks: Ranks) -> None:
        super().__init__()
        self.module, self.ranks = module, ranks

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return self.ranks.sum(self.module(*args, **kwargs))


class VocabParallelEmbedding(nn.Module):
    """An embedding of which each rank has some tokens: [...] to [..., hidden]."""

    def __init__(self, embedding: nn.Embedding, ranks: Ranks) -> None:
        super().__init__()
        embedding.padding_idx = None  # it may be another rank's
        self.embedding, self.ranks = embedding, ranks

    def forward(self, token_ids: Tensor) -> Tensor:
        rows = self.embedding.num_embeddings
        token_ids = token_ids - self.ranks.rank * rows
        others = (token_ids < 0) | (token_ids >= rows)
        states: Tensor = self.embedding(token_ids.masked_fill(others, 0))
        return self.ranks.sum(states.masked_fill(others.unsqueeze(-1), 0))


def shard(model: PreTrainedModel, ranks: Ranks) -> None:
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

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self._parts = WeakTensorKeyDictionary()  # so that what was cut is freed

    def columns(self, module: nn.Module, child: str) -> None:
        """Each rank some outputs, of attention whole heads; KV heads that are fewer than ranks are copied."""
        layer, size = getattr(module, child), self.ranks.size
        if not isinstance(layer, nn.Linear):
            return self._keep(module, child, max(layer.ndim - 2, 0), size)
        dim = getattr(
            module, "v_head_dim" if child == "v_proj" else "head_dim", getattr(module, "head_dim", 1)
        )
        heads = layer.out_features // (dim if layer.out_features % dim == 0 else 1)
        copied = heads < size and size % heads == 0
        if not copied:
            share(heads, size, f"heads or features of {child}")
        self._keep_outputs(layer, heads if copied else size)

    def gathered_columns(self, module: nn.Module, child: str) -> None:
        """Each rank some outputs, of which all are gathered."""
        linear = getattr(module, child)
        width = linear.out_features
        self._keep_outputs(linear, self.ranks.size)
        setattr(module, child, Gathered(linear, self.ranks, width))

    def rows(self, module: nn.Module, child: str) -> None:
        """Each rank some inputs."""
        layer, size = getattr(module, child), self.ranks.size
        if not isinstance(layer, nn.Linear):
            return self._keep(module, child, layer.ndim - 1, size)
        layer.in_features = share(layer.in_features, size, f"inputs of {child}")
        self._keep(layer, "weight", 1, size)
        setattr(module, child, RowParallel(layer, self.ranks))

    def packed_columns(self, module: nn.Module, child: str) -> None:
        """Gates and ups of experts, [experts, gates + ups, in]: each rank some of either."""
        self._keep(module, child, -2, self.ranks.size, packed=2)

    def packed_rows(self, module: nn.Module, child: str) -> None:
        """The same, transposed: [experts, in, gates + ups]."""
        self._keep(module, child, -1, self.ranks.size, packed=2)

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
        """Of a parameter that is cut into `pieces` along `dim` keep this rank's, filled up with zeros to equal size.

        packed: how many tensors lie one behind the other along `dim`, each to be cut.
        """
        whole = module._parameters[name]
        if whole is None:
            return
        if whole not in self._parts:
            number = self.ranks.rank * pieces // self.ranks.size
            parts = [
                part for tensor in whole.chunk(packed, dim) for part in piece(tensor, dim, number, pieces)
            ]
            self._parts[whole] = nn.Parameter(torch.cat(parts, dim), requires_grad=False)
        module._parameters[name] = self._parts[whole]


def piece(tensor: Tensor, dim: int, number: int, pieces: int) -> tuple[Tensor, Tensor]:
    """One of equal pieces along `dim`, and the zeros that it lacks at the end."""
    length = tensor.shape[dim]
    width = -(-length // pieces)
    first, last = min(number * width, length), min((number + 1) * width, length)
    part = tensor.narrow(dim, first, last - first)
    lacking = list(part.shape)
    lacking[dim] = width - (last - first)
    return part, part.new_zeros(lacking)


# Of these every rank has all.
WHOLE = frozenset(("local_params", "mla_kv_a_proj", "replicate", "replicated_with_grad_allreduce"))
STYLES: dict[str, Callable[[Cuts, nn.Module, str], None]] = {
    "all_reduce": Cuts.summed,
    "colwise": Cuts.columns,
    "colwise_gather_output": Cuts.gathered_columns,
    "embedding_rowwise": Cuts.vocabulary,
    "moe_tp_experts": Cuts.summed,
    "packed_colwise": Cuts.packed_columns,
    "packed_rowwise": Cuts.packed_rows,
    "rowwise": Cuts.rows,
    "rowwise_split_input": Cuts.rows,
}
