"""The interface of draft heads, which propose tokens for a target model to verify."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from engine_server.modeling.attention.hook import ForwardContext
from engine_server.modeling.attention.interface import IntArray, StepInputs, UnsupportedModelError
from engine_server.modeling.cache.spec import LayerShape
from engine_server.modeling.loader.probe import Probe

# Tokens of the forward that records the shape of a head's cache.
PROBED_TOKENS = 2


class DraftHead(ABC):
    """A head with one attention layer, whose K and V belong to the positions of the target's.

    Position i has those of the target's hidden state at i and the token at i + 1. So a forward with the positions and
    slots of a target's step fills its cache, given the tokens that follow. A chain of drafts continues from each
    sequence's last position: every forward takes the token that was drafted before, and the states of that draft.
    """

    # Indices of the target's decoder layers whose outputs `prepare` takes, ascending.
    aux_layers: tuple[int, ...] = ()

    def __init__(self, module: nn.Module, target: PreTrainedModel, embedding: nn.Module) -> None:
        """Bind a head's own weights to a target, whose weights it refers to.

        embedding: of the tokens, [...] to [..., hidden].
        """
        # The head's own weights, on the target's device.
        self.module: Any = module
        # Index of its attention layer, after the target's.
        self.layer = num_layers(target)
        self._embedding = embedding

    @abstractmethod
    def prepare(self, states: Tensor, auxiliary: Sequence[Tensor]) -> Tensor:
        """Return the states [T, hidden] from which a chain starts.

        states: the target's final hidden states [T, target's hidden]; auxiliary: the outputs of `aux_layers`, likewise.
        """

    @abstractmethod
    def states(self, token_ids: Tensor, positions: Tensor, hidden: Tensor) -> Tensor:
        """Return states [T, hidden], from which `logits` are computed and the chain continues.

        To be called in a forward's context. token_ids: int64 [T], that of the position after each;
        positions: int64 [T]; hidden: [T, hidden], from `prepare` or from the previous call.
        """

    @abstractmethod
    def logits(self, states: Tensor) -> Tensor:
        """Return logits [n, target's vocabulary] of states [n, hidden]; -inf for a token that is never proposed."""

    @torch.inference_mode()
    def cache_shape(self) -> LayerShape:
        """Return the shape of what the attention layer caches, from a forward of two tokens.

        Raises UnsupportedModelError if it would use the cache of another layer.
        """
        probe = Probe()
        self._run(probe, np.arange(PROBED_TOKENS))
        if probe.calls != {self.layer: 1}:
            raise UnsupportedModelError(
                f"the draft head attends as the layers {sorted(map(str, probe.calls))}, not once as layer {self.layer}"
            )
        return probe.shapes[self.layer]

    @torch.inference_mode()
    def run_step(self, num_tokens: int, num_logits: int, longest: int) -> None:
        """Compute a step with sequences of `longest` tokens, and logits of some of them; discard the results."""
        states = self._run(Probe(), np.resize(np.arange(longest), num_tokens))
        self.logits(states[:num_logits])

    def _run(self, probe: Probe, positions: IntArray) -> Tensor:
        """Return the states [T, hidden] of tokens at `positions`; each 0 begins a sequence."""
        starts = np.flatnonzero(positions == 0)
        lengths = np.diff(starts, append=len(positions))
        inputs = StepInputs.of(np.arange(len(starts)), lengths, lengths)
        places = torch.from_numpy(positions).to(self.module.device)
        width: int = self.module.config.hidden_size
        hidden = torch.zeros(len(positions), width, dtype=self.module.dtype, device=self.module.device)
        with ForwardContext(probe).run(inputs):
            return self.states(torch.zeros_like(places), places, hidden)


def num_layers(target: PreTrainedModel) -> int:
    """Return the number of a target's decoder layers."""
    count: int = target.config.get_text_config().num_hidden_layers
    return count


def decoder_layers(target: PreTrainedModel) -> nn.ModuleList:
    """Return a target's decoder layers. Raises UnsupportedModelError for a model that has no list of them."""
    count = num_layers(target)
    for module in target.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return module
    raise UnsupportedModelError(f"{type(target).__name__} has no list of its {count} decoder layers")


@contextmanager
def collect_states(target: PreTrainedModel, layers: Sequence[int]) -> Iterator[list[Tensor]]:
    """Append the outputs [T, hidden] of a target's decoder layers to a list during the forwards in this context."""
    collected: list[Tensor] = []

    def collect(_layer: nn.Module, _inputs: Any, output: Any) -> None:
        collected.append((output[0] if isinstance(output, tuple) else output)[0])

    stack = decoder_layers(target)
    hooks = [stack[layer].register_forward_hook(collect) for layer in layers]
    try:
        yield collected
    finally:
        for hook in hooks:
            hook.remove()
