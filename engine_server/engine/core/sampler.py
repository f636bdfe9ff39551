"""From logits to tokens. Given the same logits, a request's i-th token depends on its seed and i alone."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine_server.engine.core.request import Request
from engine_server.engine.core.scheduler import Sampled
from engine_server.engine.messages import TokenLogprobsArray

UInt64 = npt.NDArray[np.uint64]


class Sampler:
    """Greedy, or temperature, top-k and top-p with one uniform number a token."""

    def __init__(self, eos_token_ids: Sequence[int]) -> None:
        self.eos_token_ids = list(eos_token_ids)

    @torch.inference_mode()
    def sample(self, logits: Tensor, requests: Sequence[Request]) -> list[Sampled]:
        """logits: [n, vocabulary], a row for each of `requests`, changed in place."""
        logits = logits.float()
        reports = self._reports(logits, requests)
        self._forbid_early_ends(logits, requests)
        tokens = logits.argmax(dim=-1)
        drawn = [row for row, request in enumerate(requests) if not request.params.greedy]
        if drawn:
            tokens[drawn] = self._draw(logits[drawn], [requests[row] for row in drawn])
        sampled = [Sampled(token) for token in tokens.tolist()]
        for row, logprobs in reports.items():
            count = requests[row].params.logprobs
            assert count is not None
            sampled[row].logprobs = report(logprobs, sampled[row].token_id, count)
        return sampled

    @staticmethod
    def _reports(logits: Tensor, requests: Sequence[Request]) -> dict[int, Tensor]:
        """The model's own log-probabilities of the rows that asked, before anything is filtered."""
        rows = [row for row, request in enumerate(requests) if request.params.logprobs is not None]
        return dict(zip(rows, logits[rows].log_softmax(dim=-1), strict=True)) if rows else {}

    def _forbid_early_ends(self, logits: Tensor, requests: Sequence[Request]) -> None:
        for row, request in enumerate(requests):
            if request.num_output < request.params.min_tokens:
                logits[row, self.eos_token_ids + (request.params.stop_token_ids or [])] = -torch.inf

    @staticmethod
    def _draw(logits: Tensor, requests: Sequence[Request]) -> Tensor:
        """The inverse of each row's cumulative distribution, in order of token id, at its uniform number."""
        params = [request.params for request in requests]
        temperatures = torch.tensor([one.temperature for one in params], device=logits.device)
        logits = logits / temperatures.unsqueeze(1)
        for row, one in enumerate(params):
            if 0 < one.top_k < logits.shape[1]:
                keep_top_k(logits[row], one.top_k)
            if one.top_p < 1:
                keep_top_p(logits[row], one.top_p)
        cumulative = logits.softmax(dim=-1).cumsum(dim=-1)
        uniforms = uniform([one.seed or 0 for one in params], [request.num_output for request in requests])
        total = cumulative[:, -1:]
        targets = torch.from_numpy(uniforms).to(logits.device).unsqueeze(1) * total
        targets = torch.minimum(targets, total.nextafter(torch.zeros_like(total)))  # the product may round up
        # The first token whose cumulative probability exceeds the target: one that was filtered out never does.
        return torch.searchsorted(cumulative, targets, right=True).squeeze(1)


def keep_top_k(logits: Tensor, k: int) -> None:
    """Leave the k largest of one row (and what ties with the last of them)."""
    threshold = torch.topk(logits, k).values[-1]
    logits.masked_fill_(logits < threshold, -torch.inf)


def keep_top_p(logits: Tensor, p: float) -> None:
    """Leave the smallest set of likeliest tokens of one row whose probability reaches p."""
    probabilities, order = logits.softmax(dim=-1).sort(descending=True)
    before = probabilities.cumsum(dim=-1) - probabilities
    logits[order[before >= p]] = -torch.inf


def report(logprobs: Tensor, token: int, count: int) -> TokenLogprobsArray:
    """The token's log-probability and rank, then the `count` likeliest of the row."""
    own = logprobs[token]
    top = torch.topk(logprobs, count)
    return TokenLogprobsArray(
        token_ids=[token, *top.indices.tolist()],
        logprobs=[own.item(), *top.values.tolist()],
        ranks=[int((logprobs > own).sum()) + 1, *range(1, count + 1)],
    )


def uniform(seeds: Sequence[int], counters: Sequence[int]) -> npt.NDArray[np.float32]:
    """One number in [0, 1) for each seed and token index: Philox4x32-10, its first word's upper 24 bits."""
    keys = np.array([seed % (1 << 64) for seed in seeds], dtype=np.uint64)
    counter = np.zeros((4, len(keys)), dtype=np.uint64)
    counter[1] = np.asarray(counters, dtype=np.uint64)  # word 0 is the child's number; there is one child
    words = philox4x32(counter, np.stack([keys & MASK, keys >> np.uint64(32)]))
    uniforms: npt.NDArray[np.float32] = (words[0] >> np.uint64(8)).astype(np.float32) * np.float32(2**-24)
    return uniforms


MASK = np.uint64(0xFFFFFFFF)


def philox4x32(counter: UInt64, key: UInt64, rounds: int = 10) -> UInt64:
    """The counter-based generator of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC '11).

    counter: [4, n], key: [2, n], the result: [4, n]; 32-bit words in uint64, so that products don't overflow.
    """
    shift = np.uint64(32)
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(rounds):
        first, second = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1, c2, c3 = (second >> shift) ^ c1 ^ k0, second & MASK, (first >> shift) ^ c3 ^ k1, first & MASK
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & MASK, (k1 + np.uint64(0xBB67AE85)) & MASK
    return np.stack([c0, c1, c2, c3])
