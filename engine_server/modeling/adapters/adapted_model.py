"""A model whose layers take low-rank updates, with slots for several adapters at a time."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from engine_server.contract.base.quoting import quote
from engine_server.modeling.adapters.peft_folder import AdapterError, LowRankAdapter, adapter_bytes
from engine_server.modeling.formats.low_rank import (
    AddLowRank,
    LowRankFormat,
    LowRankPair,
    LowRankTable,
    LowRankUpdate,
    StepSlots,
)
from engine_server.modeling.formats.weight_format import Cut
from engine_server.modeling.layers.adapted_router import adapt_router, takes_updates
from engine_server.modeling.layers.embedding import Embedding
from engine_server.modeling.layers.gated_experts import WEIGHTS, GatedExperts
from engine_server.modeling.layers.linear import FusedLinear, Linear
from engine_server.modeling.layers.weight_layer import original_class


class AdaptedLayer(NamedTuple):
    """One layer's part of adapters."""

    name: str
    table: LowRankTable
    # Of the whole weight: inputs and outputs.
    shape: tuple[int, int]
    # The part of the weight [outputs, inputs] that this rank has; None: the whole.
    cut: Cut | None

    def put(self, slot: int, pairs: Mapping[str, LowRankPair]) -> None:
        """Set the update in a slot; without a pair there is none."""
        self.table.put(slot, [own_part(pairs.get(self.name), self.cut)])


@dataclass(eq=False, slots=True)
class AdaptedExperts:
    """The part of adapters that changes one weight of all experts of a layer."""

    names: list[str]
    # Of each expert: inputs and outputs, as PEFT sees them.
    shape: tuple[int, int]
    # PEFT takes inputs for outputs.
    swapped: bool
    cut: Cut | None
    # Makes the experts read a new table, and returns that.
    adapt: Callable[[], LowRankTable]
    # None until an adapter changes the weight, since it is large.
    table: LowRankTable | None = None

    def put(self, slot: int, pairs: Mapping[str, LowRankPair]) -> None:
        """Set the updates in a slot; for an expert without a pair there is none."""
        given = [pairs.get(name) for name in self.names]
        if self.swapped:
            given = [pair and LowRankPair(pair.b, pair.a) for pair in given]
        own = [own_part(pair, self.cut) for pair in given]
        if self.table is None and any(own):
            self.table = self.adapt()
        if self.table is not None:
            self.table.put(slot, own)


def own_part(pair: LowRankPair | None, cut: Cut | None) -> LowRankPair | None:
    """Return a rank's part of an update of a weight [outputs, inputs]; None: there is none."""
    if pair is None or cut is None:
        return pair
    along = cut._replace(dim=1)
    return LowRankPair(pair.a, along.of(pair.b)) if cut.dim == 0 else LowRankPair(along.of(pair.a), pair.b)


class AdaptedModel:
    """The layers of a model that adapters may change: linear layers and experts of ours, routers, the token embedding.

    slots: those of the running forward's rows.
    """

    def __init__(
        self, model: PreTrainedModel, body: nn.Module, num_slots: int, max_rank: int, add: AddLowRank
    ) -> None:
        """Add a table of `num_slots` adapters to each layer, and make its format read it.

        body: the part of the model that runs on all rows of a step.
        """
        self.slots = StepSlots()
        self.max_rank = max_rank
        self._model = type(model).__name__
        # By the names of their weights; those of experts and routers end with a number.
        self._layers: dict[str, AdaptedLayer | AdaptedExperts] = {}
        # By the names of parameters that adapters change, the number of weights in each: of experts, or a router's one.
        self.num_weights: dict[str, int] = {}
        self._num_slots = num_slots
        self._dtype, self._device = model.dtype, model.device
        self._add = add
        # The updates of products of several layers.
        fused: dict[FusedLinear, list[LowRankUpdate]] = {}
        # By classes of modules, whether they are routers that take updates.
        routers: dict[type[nn.Module], bool] = {}
        inside = set(body.modules())
        for name, module in model.named_modules():
            if module not in inside or "pooler" in name:
                continue
            if isinstance(module, Linear):
                layer = self._adapted_linear(name, module)
                self._layers[name] = layer
                if module.fused is None:
                    self._update(module, [LowRankUpdate(0, layer.table)])
                else:
                    first = sum(module.fused.sizes[: module.place])
                    fused.setdefault(module.fused, []).append(LowRankUpdate(first, layer.table))
            elif isinstance(module, Embedding):
                layer = self._adapted_embedding(name, module)
                self._layers[name] = layer
                self._update(module, [LowRankUpdate(0, layer.table)])
            elif isinstance(module, GatedExperts):
                self._add_experts(name, module)
            else:
                kind = original_class(module)
                if kind not in routers:
                    routers[kind] = takes_updates(module, add)
                if routers[kind]:
                    self._add_router(f"{name}.weight", module)
        for product, updates in fused.items():
            self._update(product, updates)

    @property
    def max_bytes(self) -> int:
        """The largest file of an adapter for the model, with the tables that PEFT saves beside embeddings."""
        elements = sum(self.max_rank * sum(layer.shape) for layer in self._layers.values())
        tables = [layer.shape for name, layer in self._layers.items() if "embed" in name or "head" in name]
        return adapter_bytes(elements + sum(rows * columns for rows, columns in tables))

    @property
    def tensors(self) -> list[Tensor]:
        """The tables of all slots."""
        return [tensor for table in self._tables for tensor in table.tensors]

    @property
    def _tables(self) -> list[LowRankTable]:
        return [layer.table for layer in dict.fromkeys(self._layers.values()) if layer.table is not None]

    def check(self, adapter: LowRankAdapter) -> None:
        """Raise AdapterError for an adapter of another model."""
        for name, (a, b) in adapter.pairs.items():
            layer = self._layers.get(name)
            if layer is None:
                raise AdapterError(
                    f"the adapter changes {quote(name)}, and {self._model} has no such layer that takes adapters"
                )
            found, expected = (a.shape[1], b.shape[1]), layer.shape
            if found != expected:
                raise AdapterError(
                    f"{quote(name)} has {found[0]} inputs and {found[1]} outputs in the adapter, and {expected[0]} and "
                    f"{expected[1]} in the model: it belongs to another base model"
                )

    @torch.inference_mode()
    def put(self, slot: int, adapter: LowRankAdapter) -> None:
        """Copy an adapter, which was checked, to a slot."""
        for layer in dict.fromkeys(self._layers.values()):
            layer.put(slot, adapter.pairs)

    @contextmanager
    def applied(self, slots: Tensor | None) -> Iterator[None]:
        """Apply the adapters in these slots, int32 [rows], to the rows of a forward; None: no row has one."""
        self.slots.rows = slots
        try:
            yield
        finally:
            self.slots.rows = None

    @contextmanager
    def largest(self, num_rows: int) -> Iterator[None]:
        """Apply an adapter of the largest rank, which changes nothing, to all rows of a forward; slots are blank."""
        for table in self._tables:
            table.ranks.fill_(self.max_rank)
        try:
            with self.applied(torch.zeros(num_rows, dtype=torch.int32, device=self._device)):
                yield
        finally:
            for table in self._tables:
                table.ranks.zero_()

    def _adapted_linear(self, name: str, linear: Linear) -> AdaptedLayer:
        cut = None if linear.sharding is None else linear.sharding.cut
        table = self._table(linear.in_features, linear.out_features)
        return AdaptedLayer(name, table, linear.whole_shape, cut)

    def _adapted_embedding(self, name: str, embedding: Embedding) -> AdaptedLayer:
        """Take the rows of the weight as the embedding's inputs."""
        cut = None if embedding.sharding is None else embedding.sharding.cut._replace(dim=1)
        width = embedding.embedding_dim
        table = self._table(embedding.num_embeddings, width)
        return AdaptedLayer(name, table, (embedding.whole_rows, width), cut)

    def _add_experts(self, name: str, experts: GatedExperts) -> None:
        experts.step_slots, experts.add_low_rank = self.slots, self._add
        for weight in WEIGHTS:
            names = [f"{name}.{weight}.{number}" for number in range(experts.num_experts)]
            (inputs, outputs), cut = experts.whole_shapes[weight], experts.cut_of_expert(weight)
            swapped = getattr(experts, "swapped_in_peft", False)
            shape = (outputs, inputs) if swapped else (inputs, outputs)
            layer = AdaptedExperts(names, shape, swapped, cut, partial(self._adapt_experts, experts, weight))
            if experts.fixed_tables:
                layer.table = layer.adapt()
            self.num_weights[f"{name}.{weight}"] = len(names)
            self._layers |= dict.fromkeys(names, layer)

    def _add_router(self, name: str, router: nn.Module) -> None:
        """Add the table of a router, of which every rank has the whole. name: of its weight."""
        experts, inputs = router.get_parameter("weight").shape
        table = self._table(inputs, experts)
        adapt_router(router, table, self.slots, self._add)
        self.num_weights[name] = 1
        self._layers[f"{name}.0"] = AdaptedLayer(f"{name}.0", table, (inputs, experts), None)

    @torch.inference_mode(False)
    def _adapt_experts(self, experts: GatedExperts, weight: str) -> LowRankTable:
        """Make the experts' products with a weight read a table, and return that."""
        (inputs, outputs), cut = experts.whole_shapes[weight], experts.cut_of_expert(weight)
        if cut is not None:
            inputs, outputs = (inputs, cut.width(outputs)) if cut.dim == 0 else (cut.width(inputs), outputs)
        table = experts.updates[weight] = self._table(inputs, outputs, experts.num_experts)
        experts.tables += table.tensors
        return table

    def _table(self, inputs: int, outputs: int, weights: int = 1) -> LowRankTable:
        return LowRankTable(
            inputs, outputs, self._num_slots, self.max_rank, self._dtype, self._device, weights
        )

    def _update(self, layer: Linear | FusedLinear | Embedding, updates: list[LowRankUpdate]) -> None:
        assert layer.format is not None
        layer.format = LowRankFormat(layer.format, updates, self.slots, self._add)
        layer.tables += tuple(tensor for update in updates for tensor in update.table.tensors)
