"""The attention hook: how a transformers model reaches the paged KV cache.

A step sets the forward context once; every attention layer then calls `paged_attention` with the whole flat
batch, and the backend of the context does the rest. The model's own code stays as transformers wrote it.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from engine_server.modeling import progress
from engine_server.modeling.device_time import device_work

IMPLEMENTATION = "fairlead"

# What models pass along that says nothing new: positions are in the step's inputs, and the rest asks for outputs.
HARMLESS = (
    "position_ids",
    "use_cache",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "return_dict",
    "deterministic",
)

IntArray = npt.NDArray[np.int64]


class UnsupportedModelError(ValueError):
    """A model that would be computed wrongly; the message says why."""


class StepInputs(NamedTuple):
    """One step's tokens, flat: sequence s owns tokens starts[s] to starts[s] + lengths[s].

    All arrays are int64 but `tables`; T tokens, S sequences. A kind of attention is a window, or none.
    """

    token_ids: IntArray  # [T]; -1 - row for one that only the device knows: the row's last
    positions: IntArray  # [T], each within its sequence
    slots: list[IntArray]  # [T] for each kind, where each token's K and V go: block id * block size + offset
    starts: IntArray  # [S]
    lengths: IntArray  # [S], tokens of this step
    contexts: IntArray  # [S], tokens in the cache once this step's are written
    tables: Sequence[npt.NDArray[np.int32]]  # for each kind the host's block table: [R, blocks a row]
    rows: IntArray  # [S], each sequence's row of `tables`
    regimes: IntArray | None = None  # [S], what a stretched rope depends on besides positions
    staged: "Staged | None" = None  # the same on the device


class Staged(NamedTuple):
    """One step on the device. All are int32; T tokens, n sequences that sample, R rows of the block table."""

    token_ids: Tensor  # [T]; -1 - row for one that only the device knows: the row's last
    positions: Tensor  # [T]
    slots: Tensor  # [kinds, T], where each token's K and V go: block id * block size + offset; -1: nowhere
    prefills: Tensor  # [sequences with several tokens, 4]: row, place of the first token, tokens, context
    decodes: Tensor  # [sequences with one token, 4]
    tables: Tensor  # [kinds, R + 1, blocks a row], the whole block table
    logit_rows: Tensor  # [n], tokens of the step whose logits are wanted
    sampling: Tensor  # [n], the sequences' rows of the block table
    longest: int  # tokens of context that one of `decodes` may have


class LayerShape(NamedTuple):
    """What one attention layer keeps for each token."""

    kv_heads: int
    key_dim: int
    value_dim: int
    window: int | None = None  # only the last so many tokens are seen, the token itself included


class Scoring(NamedTuple):
    """How one attention layer weighs the tokens that it sees."""

    scaling: float
    window: int | None = None  # only the last so many tokens are seen, the token itself included
    softcap: float | None = None  # scores become softcap * tanh(scores / softcap)
    sinks: Tensor | None = None  # [query heads], scores of a token without a value (gpt-oss)
    alibi: Tensor | None = None  # [query heads], what is taken from a score for each token that lies between
    causal: bool = True
    relative_bias: Tensor | None = None  # [1, query heads, n, n], added to the scores of up to n tokens

    @property
    def fused(self) -> bool:
        """Whether torch's fused attention can do it."""
        return self.softcap is None and self.sinks is None


class Pages(NamedTuple):
    """K, or V, of the layers that share a tensor. What a block holds is laid out as the backend likes it."""

    data: Tensor  # [blocks, ..., dim]
    scales: Tensor | None = None  # [blocks, ..., 1] in float32, of what is kept in FLOAT8: see `quantised`


class AttentionBackend(ABC):
    """Attention on one kind of device."""

    keys: Sequence[Pages] = ()
    values: Sequence[Pages] = ()
    invariant = False  # whether a token's result must have the same bits whatever is beside it

    @property
    def caches(self) -> list[Tensor]:
        """All that blocks hold: [blocks, ...] each."""
        return [cache for pages in (*self.keys, *self.values) for cache in pages if cache is not None]

    @abstractmethod
    def begin(self, inputs: StepInputs) -> None:
        """Prepare what all layers of a step share."""

    @abstractmethod
    def attend(
        self, layer: int | None, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring
    ) -> Tensor:
        """Write this step's K and V, then attend over each sequence's whole context.

        query: [T, query heads, dim]; key, value: [T, kv heads, dim]; the result: [T, query heads, value dim].
        layer: None where an encoder doesn't number its layers.
        """

    def erase(self, block_ids: list[int]) -> None:
        """Make zeros of what blocks hold: a NaN, even where it isn't seen, would spoil a weighted sum."""
        for cache in self.caches:
            cache.view(torch.uint8)[block_ids] = 0  # by bytes: not every device knows float8


_backend: AttentionBackend | None = None
_inputs: StepInputs | None = None


@contextmanager
def forward_context(backend: AttentionBackend, inputs: StepInputs) -> Iterator[None]:
    """Route the model's attention layers to `backend` for one forward."""
    global _backend, _inputs
    assert _backend is None, "forwards don't nest"
    backend.begin(inputs)
    _backend, _inputs = backend, inputs
    try:
        with device_work():
            yield
    finally:
        _backend = _inputs = None


def step_inputs() -> StepInputs:
    """What the forward that is running was given."""
    assert _inputs is not None, "no forward is running"
    return _inputs


def paged_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    is_causal: bool | None = None,
    alibi: Tensor | None = None,
    relative_bias: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """transformers' attention interface: [1, heads, T, dim] in, [1, T, heads, dim] out."""
    assert _backend is not None, "attention outside of a forward"
    progress.tick()
    refuse_unknown(module, attention_mask, options)
    causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    layer = getattr(module, "layer_idx", None)
    if layer is None and causal:
        raise UnsupportedModelError(
            f"{type(module).__name__} has no layer_idx, so its KV cache can't be told apart"
        )
    if relative_bias is not None and (causal or sliding_window or alibi is not None):
        raise UnsupportedModelError(
            f"{type(module).__name__} adds a relative bias, which is known of encoders alone, without windows and ALiBi"
        )
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    scoring = Scoring(scale, sliding_window, softcap, s_aux, alibi, causal, relative_bias)
    query, key, value = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    return _backend.attend(layer, query, key, value, scoring).unsqueeze(0), None


def refuse_unknown(module: nn.Module, mask: Tensor | None, options: dict[str, Any]) -> None:
    """Whatever might change the result and isn't handled is an error, not a wrong answer."""
    if mask is not None:
        raise UnsupportedModelError(f"{type(module).__name__} makes a mask of its own")
    for name, option in options.items():
        if option is not None and name not in HARMLESS:
            raise UnsupportedModelError(
                f"{type(module).__name__} asks for {name}, which attention doesn't know"
            )


AttentionInterface.register(IMPLEMENTATION, paged_attention)
