"""Penalties on the tokens that a request has had: CTRL's (Keskar et al., 2019) for repetition, and OpenAI's two."""

from collections.abc import Mapping

import torch
from torch import Tensor

from engine_server.engine.core.request import Request

IN_PROMPT = 1 << 30  # beside the count of a token that the prompt has


def on_device(values: object, device: torch.device) -> Tensor:
    """A tensor of numbers, int64 or float32, by a copy that the host doesn't wait for."""
    return torch.tensor(values, pin_memory=device.type == "cuda").to(device, non_blocking=True)


class Penalties:
    """How often requests had each token, counted on the device by what is drawn there: the host need not know it yet.

    A request is counted in its row of the block table.
    """

    def __init__(self, max_num_seqs: int) -> None:
        self.max_num_seqs = max_num_seqs
        self.counts: Tensor | None = None  # int32 [max_num_seqs, vocabulary], once a request asks
        self._counted: dict[int | None, tuple[Request, int]] = {}  # by row, up to which output token

    def apply(self, logits: Tensor, requests: Mapping[int, Request]) -> Tensor:
        """Penalise rows of float32 logits [n, vocabulary] in place; `count` wants what it returns."""
        if self.counts is None:
            self.counts = logits.new_empty((self.max_num_seqs, logits.shape[1]), dtype=torch.int32)
        for request in requests.values():
            if self._counted.get(request.row) != (request, request.num_output):
                token_ids = on_device(request.token_ids, logits.device)
                prompt, output = token_ids[: request.num_prompt], token_ids[request.num_prompt :]
                counts = self.counts[request.row].zero_().index_fill_(0, prompt, IN_PROMPT)
                counts.index_add_(0, output, torch.ones_like(output, dtype=torch.int32))
            self._counted[request.row] = request, request.num_output + 1
        params = [request.params for request in requests.values()]
        penalties = [(p.repetition_penalty, p.frequency_penalty, p.presence_penalty) for p in params]
        repetition, frequency, presence = on_device(penalties, logits.device).T.unsqueeze(2)
        places = on_device([(row, one.row) for row, one in requests.items()], logits.device)
        values, seen = logits[places[:, 0]], self.counts[places[:, 1]]
        repeated = torch.where(values > 0, values / repetition, values * repetition)
        times = seen & (IN_PROMPT - 1)
        penalised = torch.where(seen > 0, repeated, values) - times * frequency - (times > 0) * presence
        logits[places[:, 0]] = penalised
        return places

    def count(self, places: Tensor, tokens: Tensor) -> None:
        """Count the tokens [n] that were drawn, in the rows that were penalised."""
        assert self.counts is not None
        self.counts[places[:, 1], tokens[places[:, 0]]] += 1
