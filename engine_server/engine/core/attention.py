"""The attention hook: how a transformers model reaches the paged KV cache.

A step sets the forward context once; every attention layer then calls `paged_attention` with the whole flat
batch, and the backend of the context does the rest. The model's own code stays as transformers wrote it.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn
from transformers import AttentionInterface

IMPLEMENTATION = "fairlead"

IntArray = npt.NDArray[np.int64]


class UnsupportedModelError(ValueError):
    """A model that would be computed wrongly; the message says why."""


class StepInputs(NamedTuple):
    """One step's tokens, flat: sequence s owns tokens starts[s] to starts[s] + lengths[s].

    All arrays are int64 but block_ids; T tokens, S sequences.
    """

    token_ids: IntArray  # [T]
    positions: IntArray  # [T], each within its sequence
    slots: IntArray  # [T], where in the cache each token's K and V go: block id * block size + offset
    starts: IntArray  # [S]
    lengths: IntArray  # [S], tokens of this step
    contexts: IntArray  # [S], tokens in the cache once this step's are written
    block_ids: npt.NDArray[np.int32]  # [S, blocks], rows of the block table


class LayerShape(NamedTuple):
    """What one attention layer keeps for each token."""

    kv_heads: int
    key_dim: int
    value_dim: int


class AttentionBackend(ABC):
    """Paged attention on one kind of device."""

    @abstractmethod
    def begin(self, inputs: StepInputs) -> None:
        """Prepare what all layers of a step share."""

    @abstractmethod
    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None
    ) -> Tensor:
        """Write this step's K and V, then attend over each sequence's whole context, causally.

        query: [T, query heads, dim]; key, value: [T, kv heads, dim]; the result: [T, query heads, value dim].
        window: only the last so many tokens are seen, the token itself included.
        """


_backend: AttentionBackend | None = None


@contextmanager
def forward_context(backend: AttentionBackend, inputs: StepInputs) -> Iterator[None]:
    """Route the model's attention layers to `backend` for one forward."""
    global _backend
    assert _backend is None, "forwards don't nest"
    backend.begin(inputs)
    _backend = backend
    try:
        yield
    finally:
        _backend = None


def paged_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """transformers' attention interface: [1, heads, T, dim] in, [1, T, heads, dim] out."""
    assert _backend is not None, "attention outside of a forward"
    refuse_unknown(module, attention_mask, options)
    layer = getattr(module, "layer_idx", None)
    if layer is None:
        raise UnsupportedModelError(
            f"{type(module).__name__} has no layer_idx, so its KV cache can't be told apart"
        )
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    query, key, value = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    return _backend.attend(layer, query, key, value, scale, sliding_window).unsqueeze(0), None


def refuse_unknown(module: nn.Module, mask: Tensor | None, options: dict[str, Any]) -> None:
    """Whatever would change the result and isn't handled is an error, not a wrong answer."""
    for name in ("softcap", "s_aux", "position_bias", "head_mask"):
        if options.get(name) is not None:
            raise UnsupportedModelError(
                f"{type(module).__name__} asks for {name}, which attention doesn't know yet"
            )
    if mask is not None:
        raise UnsupportedModelError(f"{type(module).__name__} makes a mask of its own")
    if not getattr(module, "is_causal", True):
        raise UnsupportedModelError(f"{type(module).__name__} is not causal; only decoders are served")


AttentionInterface.register(IMPLEMENTATION, paged_attention)
