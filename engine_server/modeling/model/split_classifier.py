"""A classifier in two parts: from tokens to hidden states, and from a pooled state to scores."""

from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions

from engine_server.modeling.attention.interface import UnsupportedModelError
from engine_server.modeling.loader.probe import Probe, run
from engine_server.modeling.model.held_output import hold_output


class SplitClassifier:
    """Computes the scores of a ...ForSequenceClassification model from states that were pooled outside of it.

    That is the model's own forward, in which its base model returns the pooled state as that of an only token.
    """

    def __init__(self, model: PreTrainedModel, num_labels: int, first_position: int) -> None:
        """Raise UnsupportedModelError if the scores of a one-token prompt aren't the model's own.

        first_position: position of a sequence's first token.
        """
        self._model: Any = model
        self._base = cast(PreTrainedModel, model.base_model)
        # The forward reads its arguments' shapes; the base model, which would read their values, doesn't run.
        self._any_token = torch.zeros(1, 1, dtype=torch.long, device=model.device)
        position = np.array([first_position])
        expected = run(model, Probe(), position, model.device, {})
        self._held = hold_output(self._base)
        states = run(self._base, Probe(), position, model.device, {})
        scores = self.scores(states[0, 0])
        if scores.shape != (num_labels,) or not torch.allclose(
            scores, expected[0].float(), rtol=1e-2, atol=1e-2, equal_nan=True
        ):
            raise UnsupportedModelError(
                f"{type(model).__name__} has its own pooling code, which isn't supported"
            )

    @torch.inference_mode()
    def scores(self, pooled: Tensor) -> Tensor:
        """Return the scores, float32 [labels], of a pooled state [hidden]."""
        state = pooled.to(self._model.dtype).view(1, 1, -1)
        pooler = getattr(self._base, "pooler", None)
        self._held.output = BaseModelOutputWithPoolingAndCrossAttentions(
            last_hidden_state=state, pooler_output=pooler(state) if pooler else None
        )
        try:
            scores: Tensor = self._model(input_ids=self._any_token).logits[0]
        finally:
            self._held.output = None
        return scores.float()
