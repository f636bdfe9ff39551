"""The first forward, which checks that every layer calls the attention hook, and records its cache shape."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from engine_server.modeling.attention.hook import ForwardContext
from engine_server.modeling.attention.interface import IntArray, StepInputs, UnsupportedModelError
from engine_server.modeling.attention.states import Recurrence, StateShape, StepRecurrence
from engine_server.modeling.attention.step_attention import StepAttention
from engine_server.modeling.cache.spec import FULL, ChunkSpec, LayerShape, WindowSpec, spec_of
from engine_server.modeling.heads.pending import Heads
from engine_server.modeling.heads.scoring import Scoring
from engine_server.modeling.loader.layer_types import attending_layers, layer_types, num_recurrent_layers
from engine_server.modeling.loader.refusal import refused_by_name


class Probe(StepAttention):
    """Attention that records the shapes that each layer would cache, and which layers share them.

    A layer that reads another's K and V is given the very tensors that the other one was.
    """

    def __init__(self) -> None:
        super().__init__()
        self.shapes: dict[int | None, LayerShape] = {}
        # K and V of each layer that has its own, by their addresses; kept, so that no other tensor gets these.
        self._own: dict[tuple[int, int], tuple[int | None, Tensor, Tensor]] = {}
        self.calls: Counter[int | None] = Counter()
        self.causal: set[bool] = set()
        self.alibi = False

    def attend(self, layer: int | None, heads: Heads, scoring: Scoring) -> Tensor:
        key, value = heads.key, heads.value
        self.calls[layer] += 1
        self.causal.add(scoring.causal)
        source = self._own.setdefault((key.data_ptr(), value.data_ptr()), (layer, key, value))[0]
        read = None if source == layer else source
        spec = spec_of(scoring.window)
        self.shapes[layer] = LayerShape(key.shape[1], key.shape[2], value.shape[2], spec, read)
        self.alibi = self.alibi or scoring.alibi is not None
        return super().attend(layer, heads, scoring)

    def check_calls(self, name: str, layers: Sequence[int], numbered: bool) -> None:
        """Raise UnsupportedModelError unless each of these layers of a model called attention once.

        name: of the model; numbered: the layers' numbers are checked too, which identify their caches.
        """
        complete = self.calls == Counter(layers) if numbered else self.calls.total() == len(layers)
        if not complete:
            raise UnsupportedModelError(
                f"{name} has {len(layers)} layers, of which {len(self.calls)} call the attention interface of "
                f"transformers, {self.calls.total()} times; it would be computed wrongly"
            )


class ModelShapes(NamedTuple):
    """What a model keeps of earlier tokens."""

    # Of each layer in order; None: it doesn't attend. Empty for an encoder.
    layers: list[LayerShape | None]
    # Of each place where a forward carries a state from token to token, in the order of the calls.
    states: list[StateShape]


def probe(
    model: PreTrainedModel,
    config: PreTrainedConfig,
    num_tokens: int,
    device: torch.device,
    encoder: bool = False,
    first_position: int = 0,
) -> ModelShapes:
    """Run `num_tokens` tokens through the model, and return what it keeps of them.

    Raises UnsupportedModelError for a model that would be computed wrongly.
    """
    seen, sites, name = Probe(), StepRecurrence(), type(model).__name__
    positions = np.arange(num_tokens) + first_position

    def compute(backend: Probe, positions: IntArray) -> Tensor:
        with refused_by_name(name):
            return run(model, backend, positions, device, {}, sites)

    output = compute(seen, positions)
    attending = attending_layers(config)
    seen.check_calls(name, attending, numbered=not encoder)
    check_sites(name, sites, num_recurrent_layers(config))
    if seen.causal != {not encoder}:
        kind = "an encoder's" if encoder else "a decoder's"
        raise UnsupportedModelError(
            f"not every layer of {name} attends as {kind} does; it would be computed wrongly"
        )
    if encoder:
        return ModelShapes([], sites.shapes)
    shapes = [seen.shapes.get(layer) for layer in range(config.num_hidden_layers)]
    sliding, chunk = (getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size"))
    specs = {
        "full_attention": FULL,
        "hybrid": FULL,
        "sliding_attention": FULL if sliding is None else WindowSpec(sliding),
        "chunked_attention": FULL if chunk is None else ChunkSpec(chunk),
    }
    for layer, (kind, shape) in enumerate(zip(layer_types(config), shapes, strict=False)):
        if shape is not None and (kind not in specs or specs[kind] != shape.spec):
            raise UnsupportedModelError(
                f"layer {layer} of {name} is of type {kind}, but attends with {shape.spec}; "
                "it would be computed wrongly"
            )
    # A recurrent model may need no positions; the two-layer copy has shown that it keeps tokens in order.
    needs_positions = not seen.alibi and not sites.shapes
    if needs_positions and torch.equal(output, compute(Probe(), positions[::-1].copy())):
        raise UnsupportedModelError(f"{name} ignores position_ids; it would be computed wrongly")
    return ModelShapes(shapes, sites.shapes)


def check_sites(name: str, sites: StepRecurrence, layers: int) -> None:
    """Raise UnsupportedModelError unless recurrent layers, and no others, carry a state from token to token."""
    if len(sites.shapes) < layers or (sites.shapes and not layers):
        raise UnsupportedModelError(
            f"{name} has {layers} recurrent layers, which call functions of recurrences that are known "
            f"{len(sites.shapes)} times; it would be computed wrongly"
        )


@torch.inference_mode()
def run(
    model: PreTrainedModel,
    backend: Probe,
    positions: IntArray,
    device: torch.device,
    options: dict[str, int],
    recurrence: Recurrence | None = None,
) -> Tensor:
    """Return logits, or hidden states, of tokens at `positions`; each occurrence of the first begins a sequence."""
    count = len(positions)
    starts = np.flatnonzero(positions == positions[0])
    lengths = np.diff(starts, append=count)
    inputs = StepInputs.of(np.arange(len(starts)), lengths, lengths)
    try:
        with ForwardContext(backend, recurrence=recurrence).run(inputs):
            output = model(
                input_ids=torch.arange(count, device=device).unsqueeze(0)
                % model.config.get_text_config().vocab_size,
                position_ids=torch.from_numpy(positions).to(device).unsqueeze(0),
                use_cache=False,
                **options,
            )
    except (AttributeError, TypeError, KeyError, IndexError) as error:
        raise UnsupportedModelError(
            f"{type(model).__name__} can't take one flat batch without a mask: {error}"
        ) from error
    first: Tensor = output[0]
    return first
