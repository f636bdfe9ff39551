"""Penalties on the tokens that a request has had: CTRL's (Keskar et al., 2019) for repetition, and OpenAI's two."""

from collections.abc import Mapping

import torch
from torch import Tensor

from engine_server.core.scheduling.request import Request

IN_PROMPT = 1 << 30  # beside the count of a token that the prompt has


def on_device(values: object, device: torch.device) -> Tensor:
    """A tensor of numbers, int64 or float32, by a copy that the host doesn't wait for."""
    return torch.tensor(values, pin_memory=device.type == "cuda").to(device, non_blocking=True)


class Penalties:
    """The tokens of the requests that ask for penalties, and how often they had each, kept where tokens are drawn.

    So the host need not have seen a token for the next to be penalised. A request's row is that of its block table.
    """

    def __init__(self, max_num_seqs: int, max_model_len: int) -> None:
        self.shape = max_num_seqs, max_model_len + 1
        self.token_ids: Tensor | None = None  # int32 [*shape], of each row beyond its length whichever it has
        self.counts: Tensor  # int32 [max_num_seqs, vocabulary]
        self._counted: dict[int | None, tuple[Request, int]] = {}  # by row, up to which output token

    def apply(self, logits: Tensor, requests: Mapping[int, Request]) -> Tensor:
        """Penalise rows of float32 logits [n, vocabulary] in place; `count` wants what it returns."""
        if self.token_ids is None:
            self.counts = logits.new_empty((self.shape[0], logits.shape[1]), dtype=torch.int32)
            self.token_ids = logits.new_empty(self.shape, dtype=torch.int32)
        for request in requests.values():
            if self._counted.get(request.row) != (request, request.num_output):
                token_ids = on_device(request.token_ids, logits.device)
                self.token_ids[request.row] = token_ids[0]
                self.token_ids[request.row, : len(token_ids)] = token_ids
                counts = self.counts[request.row].zero_()
                counts[token_ids[: request.num_prompt]] = IN_PROMPT
                output = token_ids[request.num_prompt :]
                counts.index_add_(0, output, torch.ones_like(output, dtype=torch.int32))
            self._counted[request.row] = request, request.num_output + 1
        rows = [(row, one.row, len(one.token_ids)) for row, one in requests.items()]
        places = on_device(rows, logits.device).T
        own, kept = places[:2].unsqueeze(2)
        params = [request.params for request in requests.values()]
        penalties = [(p.repetition_penalty, p.frequency_penalty, p.presence_penalty) for p in params]
        repetition, frequency, presence = on_device(penalties, logits.device).T.unsqueeze(2)
        tokens = self.token_ids[
            kept[:, 0], : max(length for *_, length in rows)
        ]  # those that are there twice get the same twice
        values, seen = logits[own, tokens], self.counts[kept, tokens]
        repeated = torch.where(values > 0, values / repetition, values * repetition)
        times = seen & (IN_PROMPT - 1)
        logits[own, tokens] = repeated - times * frequency - (times > 0) * presence
        return places

    def count(self, places: Tensor, tokens: Tensor) -> None:
        """Add the tokens [n] that were drawn, in the rows that were penalised."""
        assert self.token_ids is not None
        rows, slots, lengths = places
        self.counts[slots, tokens[rows]] += 1
        self.token_ids[slots, lengths] = tokens[rows].int()
