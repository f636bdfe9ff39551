"""Sampling in plain torch: filters, and the inverse of the cumulative distribution at a counter-based random number."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine_server.core.sampling.row_parameters import Records

UInt64 = npt.NDArray[np.uint64]
Filter = Callable[[Tensor, Tensor], Tensor]

# Number of likeliest tokens that nearly always reach top_p; sorting the whole vocabulary takes far longer.
NUCLEUS = 1024


class DrawParameters:
    """The parameters of rows that are drawn at random, on the device."""

    def __init__(self, records: Records, vocabulary: int, device: torch.device) -> None:
        """records: PARAMETERS [n], none of them greedy."""

        def column(values: npt.NDArray[Any]) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(values)).to(device).unsqueeze(1)

        self._temperatures = column(records["temperature"])
        self._filters: list[tuple[Filter, list[int], Tensor]] = []
        min_p, top_k, top_p = records["min_p"], records["top_k"].astype(np.int64), records["top_p"]
        for keep, limits, limited in (
            (keep_min_p, min_p, min_p > 0),
            (keep_top_k, top_k, (top_k > 0) & (top_k < vocabulary)),
            (keep_top_p, top_p, top_p < 1),
        ):
            if limited.any():
                self._filters.append((keep, np.flatnonzero(limited).tolist(), column(limits[limited])))
        self._uniforms = uniform(records["seed"], records["choice"], records["index"])

    def filter(self, logits: Tensor) -> Tensor:
        """Divide float32 logits [n, vocabulary] by their temperatures, and mask what the filters exclude."""
        logits = logits / self._temperatures
        for keep, rows, limits in self._filters:
            logits[rows] = keep(logits[rows], limits)
        return logits

    @property
    def uniforms(self) -> Tensor:
        """Each row's random number, float32 [n, 1] on the host."""
        return torch.from_numpy(self._uniforms).unsqueeze(1)


def draw(logits: Tensor, parameters: DrawParameters) -> Tensor:
    """Invert each row's cumulative distribution, in order of token id, at its random number.

    logits: float32 [n, vocabulary]; returns int64 [n].
    """
    cumulative = parameters.filter(logits).softmax(dim=-1).cumsum(dim=-1)
    total = cumulative[:, -1:]
    targets = parameters.uniforms.to(logits.device) * total
    # The product may round up to the total.
    targets = torch.minimum(targets, total.nextafter(torch.zeros_like(total)))
    # The first token whose cumulative probability exceeds the target is never one that was filtered out.
    drawn = torch.searchsorted(cumulative, targets, right=True).squeeze(1)
    # A row of NaN has no such token.
    return drawn.clamp(max=logits.shape[1] - 1)


def keep_min_p(logits: Tensor, share: Tensor) -> Tensor:
    """Mask the tokens that are less than `share` [n, 1] times as likely as the likeliest of their row."""
    return logits.masked_fill(logits < logits.amax(dim=-1, keepdim=True) + share.log(), -torch.inf)


def keep_top_k(logits: Tensor, k: Tensor) -> Tensor:
    """Mask all but the k [n, 1] largest logits of each row and any that tie with the k-th."""
    thresholds = logits.topk(int(k.max())).values.gather(1, k - 1)
    return logits.masked_fill(logits < thresholds, -torch.inf)


def keep_top_p(logits: Tensor, p: Tensor) -> Tensor:
    """Mask all but the smallest set of likeliest tokens of each row whose probability reaches p [n, 1], and ties."""
    probabilities = logits.softmax(dim=-1)
    likeliest = probabilities.topk(min(NUCLEUS, logits.shape[1])).values
    if (likeliest.cumsum(dim=-1)[:, -1:] < p).any():
        likeliest = probabilities.sort(descending=True).values
    before = likeliest.cumsum(dim=-1) - likeliest
    thresholds = likeliest.masked_fill(before >= p, torch.inf).amin(dim=-1, keepdim=True)
    return logits.masked_fill(probabilities < thresholds, -torch.inf)


def uniform(
    seeds: npt.ArrayLike, choice_indexes: npt.ArrayLike, token_indexes: npt.ArrayLike
) -> npt.NDArray[np.float32]:
    """Return a number in [0, 1) for each seed, choice and token: the upper 24 bits of Philox4x32-10's first word."""
    keys = np.asarray(seeds, dtype=np.uint64)
    counter = np.zeros((4, len(keys)), dtype=np.uint64)
    counter[0], counter[1] = choice_indexes, token_indexes
    words = philox4x32(counter, np.stack([keys & MASK, keys >> np.uint64(32)]))
    uniforms: npt.NDArray[np.float32] = (words[0] >> np.uint64(8)).astype(np.float32) * np.float32(2**-24)
    return uniforms


MASK = np.uint64(0xFFFFFFFF)


def philox4x32(counter: UInt64, key: UInt64, rounds: int = 10) -> UInt64:
    """Compute the counter-based generator of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC '11).

    counter: [4, n], key: [2, n]; returns [4, n]. 32-bit words are kept in uint64, so that products don't overflow.
    """
    shift = np.uint64(32)
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(rounds):
        first, second = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1, c2, c3 = (second >> shift) ^ c1 ^ k0, second & MASK, (first >> shift) ^ c3 ^ k1, first & MASK
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & MASK, (k1 + np.uint64(0xBB67AE85)) & MASK
    return np.stack([c0, c1, c2, c3])
