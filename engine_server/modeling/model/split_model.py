"""A causal language model in two parts: the decoder up to its hidden states, and the rest up to logits."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from engine_server.modeling.attention.interface import UnsupportedModelError
from engine_server.modeling.loader.backbone import backbone
from engine_server.modeling.loader.probe import Probe, run
from engine_server.modeling.loader.refusal import refused_by_name
from engine_server.modeling.model.held_output import hold_output

# Tokens for comparing the two parts with the whole model.
VERIFIED_TOKENS = 2


class SplitModel:
    """A model whose decoder and remaining part run separately.

    The rest is the model's own forward, in which the decoder returns the given states, so that softcaps, scales and
    other code between decoder and logits stay transformers' own. Of a model that takes pictures, the module around the
    decoder returns them, since it would look up embeddings first.
    """

    def __init__(self, model: PreTrainedModel, first_position: int) -> None:
        """Raise UnsupportedModelError if the two parts together don't compute the model's own logits.

        first_position: position of a sequence's first token.
        """
        self._model: Any = model
        self.decoder = find_decoder(model)
        # The forward reads its arguments' shapes; the decoder, which would read their values, doesn't run.
        self._any_token = torch.zeros(1, 1, dtype=torch.long, device=model.device)
        positions = np.arange(VERIFIED_TOKENS) + first_position
        with refused_by_name(type(model).__name__):
            expected = run(model, Probe(), positions, model.device, {})[0]
            body = outermost(model, self.decoder)
            self._held = hold_output(body)
            states = run(self.decoder, Probe(), positions, model.device, {})
            if body is not self.decoder:
                run(body, Probe(), positions, model.device, {})  # the held output is of its class
            logits = self.logits(states[0])
        if not torch.allclose(logits.float(), expected.float(), rtol=1e-2, atol=1e-2, equal_nan=True):
            raise UnsupportedModelError(
                f"the logits of {type(model).__name__} depend on more than its decoder's hidden states"
            )
        self.hidden_size = states.shape[-1]
        self.vocabulary = logits.shape[-1]

    def states(self, arguments: dict[str, Any]) -> Tensor:
        """Return the hidden states [T, hidden] after the decoder's last norm."""
        states: Tensor = self.decoder(**arguments).last_hidden_state[0]
        return states

    def logits(self, states: Tensor) -> Tensor:
        """Return the logits [n, vocabulary] of hidden states [n, hidden]."""
        self._held.output = self._held.kind(last_hidden_state=states.unsqueeze(0))
        try:
            logits: Tensor = self._model(input_ids=self._any_token, use_cache=False).logits[0]
        finally:
            self._held.output = None
        return logits


def outermost(model: PreTrainedModel, decoder: PreTrainedModel) -> PreTrainedModel:
    """Return the outermost module that returns a decoder's hidden states; beside an encoder not the decoder itself."""
    if getattr(model.config, "vision_config", None) is None:
        return decoder
    body: PreTrainedModel = backbone(model)
    return body if body is not model and decoder in body.modules() else decoder


def find_decoder(model: PreTrainedModel) -> PreTrainedModel:
    """Return the module of a causal language model that computes hidden states. Raises UnsupportedModelError."""
    decoder: Any = model.get_decoder()  # type: ignore[no-untyped-call]
    if isinstance(decoder, PreTrainedModel) and decoder is not model:
        return decoder  # ModernBERT calls its head the decoder
    parts = [child for child in model.children() if isinstance(child, PreTrainedModel)]
    if len(parts) != 1:
        raise UnsupportedModelError(f"{type(model).__name__} has no decoder that can run separately")
    return parts[0]
