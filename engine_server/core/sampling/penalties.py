"""Penalties on a request's earlier tokens: CTRL's (Keskar et al., 2019) for repetition, and OpenAI's two."""

from collections import Counter

import torch
from torch import Tensor

from engine_server.core.sampling.processor import Row
from engine_server.core.scheduling.request import GenerationRequest, Request
from engine_server.modeling.platform.interface import Platform
from engine_server.requests.sampling_params import SamplingParams

# Added to the count of a token that the prompt has.
IN_PROMPT = 1 << 30


class Penalties:
    """A processor of penalties that counts tokens on the device, so that the next step needn't wait for the host.

    A request's row of the tables is its row of the block table.
    """

    def __init__(self, max_num_seqs: int, max_model_len: int, vocabulary: int, platform: Platform) -> None:
        self._platform = platform
        # Each request's tokens; entries beyond its length are arbitrary token ids.
        self._token_ids = torch.empty(
            max_num_seqs, max_model_len + 1, dtype=torch.int32, device=platform.device
        )
        self._counts = torch.empty(max_num_seqs, vocabulary, dtype=torch.int32, device=platform.device)
        # By row: repetition, frequency and presence.
        self._rates = torch.empty(max_num_seqs, 3, device=platform.device)
        # By row: how many of its request's tokens are counted.
        self._counted = [0] * max_num_seqs
        # `_place` of each request's last row in the latest `apply`.
        self._places = torch.empty(3, 0, dtype=torch.int64, device=platform.device)

    @property
    def tensors(self) -> list[Tensor]:
        """The tables, which have a row for each request that can run."""
        return [self._token_ids, self._counts, self._rates]

    def applies_to(self, params: SamplingParams) -> bool:
        return params.penalises

    def open(self, row: int, request: GenerationRequest) -> None:
        params = request.params
        rates = [params.repetition_penalty, params.frequency_penalty, params.presence_penalty]
        self._rates[row] = self._platform.to_device(rates)
        self._counted[row] = 0

    def close(self, row: int) -> None:
        """Do nothing: what was counted is counted again in the next row."""

    def apply(self, logits: Tensor, rows: list[Row]) -> dict[int, str]:
        first, *others = waves(rows)
        self._places = self._penalise(logits, first)
        for wave in others:
            self._count_drafts(wave)
            self._penalise(logits, wave)
        if others:
            last = {row.scheduled.row: row for row in rows}
            self._places = self._place(list(last.values()))
        return {}

    def run_largest(self, logits: Tensor) -> None:
        self._token_ids.zero_()
        rows = torch.arange(min(len(logits), len(self._token_ids)), device=logits.device)
        longest = self._token_ids.shape[1] - 1
        self._rates[rows] = 1.0
        self._change(logits, torch.stack([rows, rows]), longest)

    def observe(self, tokens: Tensor) -> None:
        rows, kept, lengths = self._places
        self._counts[kept, tokens[rows]] += 1
        self._token_ids[kept, lengths] = tokens[rows].int()

    def _place(self, rows: list[Row]) -> Tensor:
        """Return each row's row of the logits, row of the tables and number of tokens, [3, n]."""
        places = [(index, scheduled.row, scheduled.end) for index, scheduled in rows]
        return self._platform.to_device(places).T

    def _penalise(self, logits: Tensor, rows: list[Row]) -> Tensor:
        """Change one row of logits of each request, by the tokens before it; return the result of `_place`."""
        for _, scheduled in rows:
            if self._counted[scheduled.row] != scheduled.end:
                self._count_all(scheduled.row, scheduled.request, scheduled.end)
            self._counted[scheduled.row] = scheduled.end + 1
        places = self._place(rows)
        longest = max(scheduled.end for _, scheduled in rows)
        self._change(logits, places[:2], longest)
        return places

    def _change(self, logits: Tensor, places: Tensor, longest: int) -> None:
        """Change rows of logits by the first `longest` tokens of rows of the tables.

        places: int64 [2, n], the rows of the logits and of the tables.
        """
        own, kept = places.unsqueeze(2)
        repetition, frequency, presence = self._rates[kept[:, 0]].T.unsqueeze(2)
        # A token that occurs twice in a request is written twice with the same value.
        tokens = self._token_ids[kept[:, 0], :longest]
        values, seen = logits[own, tokens], self._counts[kept, tokens]
        repeated = torch.where(values > 0, values / repetition, values * repetition)
        times = seen & (IN_PROMPT - 1)
        logits[own, tokens] = repeated - times * frequency - (times > 0) * presence

    def _count_drafts(self, rows: list[Row]) -> None:
        """Count the draft that each row follows. After a wrong one, all of the request's tokens are counted again."""
        drafts = [(one.row, one.start, one.request.token_ids[one.start]) for _, one in rows]
        kept, places, tokens = self._platform.to_device(drafts).T
        self._counts[kept, tokens] += 1
        self._token_ids[kept, places] = tokens.int()

    def _count_all(self, row: int, request: Request, length: int) -> None:
        """Count the first `length` tokens of a request that is new in its row."""
        own = request.token_ids[request.num_virtual : length]
        # A token of the prompt stands for virtual ones, which have no penalty.
        token_ids = self._platform.to_device(own[:1] * request.num_virtual + own)
        self._token_ids[row] = token_ids[0]
        self._token_ids[row, :length] = token_ids
        counts = self._counts[row].zero_()
        counts[token_ids[: request.num_prompt]] = IN_PROMPT
        output = token_ids[request.num_prompt :]
        counts.index_add_(0, output, torch.ones_like(output, dtype=torch.int32))


def waves(rows: list[Row]) -> list[list[Row]]:
    """Split rows by how many rows of the same request come before them; a request's last row may follow drafts."""
    result: list[list[Row]] = []
    seen: Counter[int] = Counter()
    for row in rows:
        depth = seen[row.scheduled.row]
        seen[row.scheduled.row] += 1
        if depth == len(result):
            result.append([])
        result[depth].append(row)
    return result
