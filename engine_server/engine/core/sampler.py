"""From logits to tokens. Given the same logits, a request's i-th token depends on its seed, child and i alone."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine_server.engine.core.request import Request
from engine_server.engine.core.scheduler import Sampled
from engine_server.engine.messages import TokenLogprobsArray
from engine_server.modeling.device_time import device_work

UInt64 = npt.NDArray[np.uint64]
LogitsProcessor = Callable[[list[int], Tensor], Tensor]

NUCLEUS = 1024  # so many of the likeliest tokens nearly always hold top_p, and sorting all takes far longer


@dataclass(slots=True)
class Launched:
    """A step's tokens on their way from the device."""

    tokens: Tensor  # int64 [n], on the device
    largest: Tensor  # [n], each row's largest logit
    errors: list[str | None]  # of each row
    logprobs: Tensor | None  # [rows of `counts`, vocabulary], the model's own
    counts: dict[int, int]  # of the rows that want logprobs: of how many tokens beside their own

    @torch.inference_mode()
    def collect(self) -> list[Sampled]:
        """Wait for the device: a token for each row, or why it can have none."""
        with device_work():
            token_ids, values = self.tokens.tolist(), self.largest.tolist()
        samples = [
            Sampled(token, error=error or complaint(value))
            for token, error, value in zip(token_ids, self.errors, values, strict=True)
        ]
        if self.logprobs is not None:
            reports = report(self.logprobs, self.tokens[list(self.counts)], list(self.counts.values()))
            for row, one in zip(self.counts, reports, strict=True):
                samples[row].logprobs = one
        return samples


class Sampler:
    """Greedy, or temperature and filters with one uniform number a token.

    `processors` are the custom logits processors that requests may name.
    """

    def __init__(self, eos_token_ids: Sequence[int], processors: Mapping[str, LogitsProcessor]) -> None:
        self.eos_token_ids = list(eos_token_ids)
        self.processors = processors

    @torch.inference_mode()
    def launch(self, logits: Tensor, requests: Sequence[Request]) -> Launched:
        """Begin to choose a token for each of `requests`. logits: [n, vocabulary], changed in place."""
        logits = logits.float()
        counts = {
            row: count for row, one in enumerate(requests) if (count := one.params.logprobs) is not None
        }
        logprobs = logits[list(counts)].log_softmax(dim=-1) if counts else None  # the model's own
        errors = [
            self._adjust(logits[row], request) if request.params.adjusts_logits else None
            for row, request in enumerate(requests)
        ]
        drawn = [row for row, request in enumerate(requests) if not request.params.greedy]
        with device_work():
            largest, tokens = logits.max(dim=-1)
            if drawn:
                tokens[drawn] = draw(logits[drawn], [requests[row] for row in drawn])
        return Launched(tokens, largest, errors, logprobs, counts)

    def _adjust(self, logits: Tensor, request: Request) -> str | None:
        """Do to one row [vocabulary] what its request asks for; the message, where one of its processors fails."""
        params = request.params
        output = request.token_ids[request.num_prompt :]
        if params.allowed_token_ids is not None:
            allowed = logits[params.allowed_token_ids]
            logits.fill_(-torch.inf)[params.allowed_token_ids] = allowed
        for *before, last in params.bad_words_token_ids or ():
            if output[len(output) - len(before) :] == before:
                logits[last] = -torch.inf
        if params.logit_bias:
            logits[list(params.logit_bias)] += logits.new_tensor(list(params.logit_bias.values()))
        if len(output) < params.min_tokens:
            logits[self.eos_token_ids + (params.stop_token_ids or [])] = -torch.inf
        for path in params.logits_processors or ():
            try:
                logits.copy_(self.processors[path](request.token_ids.copy(), logits))
            except Exception as error:
                return f"{path}: {type(error).__name__}: {error}"
        penalise(logits, request)
        return None


def complaint(largest: float) -> str | None:
    """What is wrong with a row of which this is the largest logit."""
    if math.isfinite(largest):
        return None
    return "no token is left to choose from" if largest == -math.inf else "the logits are not finite"


def penalise(logits: Tensor, request: Request) -> None:
    """One row's repetition penalty (Keskar et al., "CTRL", 2019), then OpenAI's frequency and presence penalties."""
    params = request.params
    if params.repetition_penalty != 1:
        seen = torch.tensor(list(set(request.token_ids)), device=logits.device)
        values = logits[seen]
        factor = params.repetition_penalty
        logits[seen] = torch.where(values > 0, values / factor, values * factor)
    if params.frequency_penalty or params.presence_penalty:
        output = Counter(request.token_ids[request.num_prompt :])
        tokens = torch.tensor(list(output), dtype=torch.int64, device=logits.device)
        counts = torch.tensor(list(output.values()), device=logits.device)
        logits[tokens] -= counts * params.frequency_penalty + params.presence_penalty


def draw(logits: Tensor, requests: Sequence[Request]) -> Tensor:
    """The inverse of each row's cumulative distribution, in order of token id, at its uniform number."""
    params = [request.params for request in requests]
    temperatures = torch.tensor([one.temperature for one in params], device=logits.device)
    logits = logits / temperatures.unsqueeze(1)
    for keep, values in (
        (keep_min_p, {row: one.min_p for row, one in enumerate(params) if one.min_p > 0}),
        (keep_top_k, {row: one.top_k for row, one in enumerate(params) if 0 < one.top_k < logits.shape[1]}),
        (keep_top_p, {row: one.top_p for row, one in enumerate(params) if one.top_p < 1}),
    ):
        if values:
            rows = list(values)
            limits = torch.tensor(list(values.values()), device=logits.device).unsqueeze(1)
            logits[rows] = keep(logits[rows], limits)
    cumulative = logits.softmax(dim=-1).cumsum(dim=-1)
    uniforms = uniform(
        [one.seed or 0 for one in params],
        [request.child for request in requests],
        [request.num_output for request in requests],
    )
    total = cumulative[:, -1:]
    targets = torch.from_numpy(uniforms).to(logits.device).unsqueeze(1) * total
    targets = torch.minimum(targets, total.nextafter(torch.zeros_like(total)))  # the product may round up
    # The first token whose cumulative probability exceeds the target: one that was filtered out never does.
    drawn = torch.searchsorted(cumulative, targets, right=True).squeeze(1)
    return drawn.clamp(max=logits.shape[1] - 1)  # a row of NaN has none


def keep_min_p(logits: Tensor, share: Tensor) -> Tensor:
    """Leave what is at least `share` [n, 1] times as likely as the likeliest of its row."""
    return logits.masked_fill(logits < logits.amax(dim=-1, keepdim=True) + share.log(), -torch.inf)


def keep_top_k(logits: Tensor, k: Tensor) -> Tensor:
    """Leave the k [n, 1] largest of each row (and what ties with the last of them)."""
    thresholds = logits.topk(int(k.max())).values.gather(1, k - 1)
    return logits.masked_fill(logits < thresholds, -torch.inf)


def keep_top_p(logits: Tensor, p: Tensor) -> Tensor:
    """Leave the smallest set of likeliest tokens of each row whose probability reaches p [n, 1] (and ties)."""
    probabilities = logits.softmax(dim=-1)
    likeliest = probabilities.topk(min(NUCLEUS, logits.shape[1])).values
    if (likeliest.cumsum(dim=-1)[:, -1:] < p).any():
        likeliest = probabilities.sort(descending=True).values
    before = likeliest.cumsum(dim=-1) - likeliest
    thresholds = likeliest.masked_fill(before >= p, torch.inf).amin(dim=-1, keepdim=True)
    return logits.masked_fill(probabilities < thresholds, -torch.inf)


def report(logprobs: Tensor, tokens: Tensor, counts: Sequence[int]) -> list[TokenLogprobsArray]:
    """For each row of `logprobs` [n, vocabulary] its token's [n] logprob and rank, then its `counts` likeliest."""
    own = logprobs.gather(1, tokens.unsqueeze(1))
    ranks = (logprobs > own).sum(dim=-1) + 1
    top = logprobs.topk(min(max(counts), logprobs.shape[1]))
    return [
        TokenLogprobsArray([token, *ids[:count]], [value, *values[:count]], [rank, *range(1, count + 1)])
        for token, (value,), rank, ids, values, count in zip(
            tokens.tolist(), own.tolist(), ranks.tolist(), top.indices.tolist(), top.values.tolist(), counts,
            strict=True,
        )
    ]  # fmt: skip


def uniform(seeds: Sequence[int], children: Sequence[int], indexes: Sequence[int]) -> npt.NDArray[np.float32]:
    """One number in [0, 1) for each seed, child and token index: Philox4x32-10, its first word's upper 24 bits."""
    keys = np.array([seed % (1 << 64) for seed in seeds], dtype=np.uint64)
    counter = np.zeros((4, len(keys)), dtype=np.uint64)
    counter[0], counter[1] = children, indexes
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
