"""A language model that scores a prompt by the logits of the answers that may follow it."""

import torch
from torch import Tensor
from transformers import PreTrainedModel

from engine_server.modeling.model.split_model import SplitModel


class AnswerScorer:
    """Computes the score of a pooled state: the positive answer's logit, less the negative one's if there is one.

    That is the LogitScore module of sentence-transformers, and the log-odds of the two answers.
    """

    def __init__(self, model: PreTrainedModel, first_position: int) -> None:
        """Raise UnsupportedModelError for a model whose logits depend on more than its hidden states.

        model: with a head that computes the answers' logits alone. first_position: position of a sequence's first
        token.
        """
        self._dtype = model.dtype
        self._split = SplitModel(model, first_position)

    @torch.inference_mode()
    def scores(self, pooled: Tensor) -> Tensor:
        """Return the score, float32 [1], of a pooled state [hidden]."""
        logits = self._split.logits(pooled.to(self._dtype).unsqueeze(0))[0].float()
        return logits if len(logits) == 1 else logits[1:] - logits[:1]
