"""From logits to tokens. Given the same logits, a request's i-th token depends on its seed, child and i alone."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine_server.core.logits.penalties import Penalties, on_device
from engine_server.core.scheduling.request import Request
from engine_server.core.scheduling.scheduler import Sampled
from engine_server.modeling.device_time import DeviceTimer
from engine_server.modeling.platform.interface import Platform
from engine_server.requests.messages import TokenLogprobsArray

if TYPE_CHECKING:
    from engine_server.core.heads.kernel_sampler import KernelSampler

UInt64 = npt.NDArray[np.uint64]
LogitsProcessor = Callable[[list[int], Tensor], Tensor]

NUCLEUS = 1024  # so many of the likeliest tokens nearly always hold top_p, and sorting all takes far longer


class Launched:
    """A step's tokens, int64 [n], and all that is told of them, on their way from the device."""

    def __init__(
        self, tokens: Tensor, largest: Tensor, errors: Mapping[int, str | None], wanted: Mapping[int, int],
        ranked: list[Tensor], platform: Platform, timer: DeviceTimer,
    ) -> None:  # fmt: skip
        """`largest` [n] are the rows' largest logits, `ranked` what `rank` gives for the rows of `wanted`."""
        self.tokens, self.errors, self.wanted = tokens, errors, wanted
        self._copies = [one.to("cpu", non_blocking=True) for one in (tokens, largest, *ranked)]
        self._timer = timer
        self._copied = platform.record_event()

    def collect(self) -> list[Sampled]:
        """Wait for the device: a token for each row, or why it can have none."""
        with self._timer.measure():
            if self._copied:
                self._copied.synchronize()
        tokens, largest, *ranked = self._copies
        samples = [
            Sampled(token, error=self.errors.get(row) or complaint(value))
            for row, (token, value) in enumerate(zip(tokens.tolist(), largest.tolist(), strict=True))
        ]
        if ranked:
            for row, one in zip(self.wanted, report(ranked, list(self.wanted.values())), strict=True):
                samples[row].logprobs = one
        return samples


class Sampler:
    """Greedy, or temperature and filters with one uniform number a token.

    `processors` are the custom logits processors that requests may name.
    """

    def __init__(
        self, eos_token_ids: Sequence[int], processors: Mapping[str, LogitsProcessor], platform: Platform,
        max_num_seqs: int, max_model_len: int, timer: DeviceTimer | None = None,
    ) -> None:  # fmt: skip
        self.eos_token_ids = list(eos_token_ids)
        self.processors = processors
        self.penalties = Penalties(max_num_seqs, max_model_len)
        self.kernels: KernelSampler | None = None
        self.platform = platform
        self.timer = timer or DeviceTimer()
        if platform.samples_by_kernel:
            from engine_server.core.heads import kernel_sampler

            self.kernels = kernel_sampler.KernelSampler(max_num_seqs, platform.device)

    def prepare(self, requests: list[Request]) -> None:
        """Tell the device for whom the next `launch` is, before their forward: a captured one draws at once."""
        if self.kernels:
            self.kernels.fill(requests)

    @torch.inference_mode()
    def launch(
        self, logits: Tensor, requests: list[Request], drawn: Sequence[Tensor] | None = None
    ) -> Launched:
        """Begin to choose a token for each of `requests`, and wait for no device unless one `needs_last_token`.

        logits: [n, vocabulary], changed in place; drawn: what `KernelSampler.sample` gave for them in a graph.
        """
        wanted = {
            row: count for row, one in enumerate(requests) if (count := one.params.logprobs) is not None
        }
        if wanted:
            rows = on_device(list(wanted), logits.device)
            logprobs = logits[rows].float().log_softmax(dim=-1)  # the model's own
        adjusted = {row: one for row, one in enumerate(requests) if one.params.adjusts_logits}
        penalised = {row: one for row, one in adjusted.items() if one.params.penalises}
        errors = {}
        if adjusted:
            logits, drawn = logits.float(), None
            errors = {row: self._adjust(logits[row], one) for row, one in adjusted.items()}
        if penalised:
            places = self.penalties.apply(logits, penalised)
        with self.timer.measure():
            tokens, largest = drawn or self._draw(logits, requests)
        if penalised:
            self.penalties.count(places, tokens)
        ranked = rank(logprobs, tokens[rows], max(wanted.values())) if wanted else []
        return Launched(tokens, largest, errors, wanted, ranked, self.platform, self.timer)

    def _draw(self, logits: Tensor, requests: list[Request]) -> tuple[Tensor, Tensor]:
        """A token for each row of `logits` [n, vocabulary], int64 [n], and its largest logit."""
        if self.kernels:
            return self.kernels.sample(logits)
        largest, tokens = logits.max(dim=-1)
        drawn = [row for row, request in enumerate(requests) if not request.params.greedy]
        if drawn:
            tokens[drawn] = draw(logits[drawn].float(), [requests[row] for row in drawn])
        return tokens, largest

    def _adjust(self, logits: Tensor, request: Request) -> str | None:
        """Do to one row [vocabulary] what its request asks for; the message, where one of its processors fails."""
        params, device = request.params, logits.device
        if params.allowed_token_ids is not None:
            token_ids = on_device(params.allowed_token_ids, device)
            allowed = logits[token_ids]
            logits.fill_(-torch.inf)[token_ids] = allowed
        if params.logit_bias:
            biases = on_device(list(params.logit_bias.values()), device)
            logits[on_device(list(params.logit_bias), device)] += biases
        output = request.token_ids[request.num_prompt :]
        words = params.bad_words_token_ids or []
        banned = [last for *before, last in words if output[len(output) - len(before) :] == before]
        if len(output) < params.min_tokens:
            banned += self.eos_token_ids + (params.stop_token_ids or [])
        if banned:
            logits[on_device(banned, device)] = -torch.inf
        for path in params.logits_processors or ():
            try:
                logits.copy_(self.processors[path](request.token_ids.copy(), logits))
            except Exception as error:
                return f"{path}: {type(error).__name__}: {error}"
        return None


def complaint(largest: float) -> str | None:
    """What is wrong with a row of which this is the largest logit."""
    if math.isfinite(largest):
        return None
    return "no token is left to choose from" if largest == -math.inf else "the logits are not finite"


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
        [request.choice_index for request in requests],
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


def rank(logprobs: Tensor, tokens: Tensor, count: int) -> list[Tensor]:
    """What `report` tells of, for each row of `logprobs` [n, vocabulary]: its token [n], its `count` likeliest."""
    own = logprobs.gather(1, tokens.unsqueeze(1))
    top = logprobs.topk(min(count, logprobs.shape[1]))
    return [tokens, own, (logprobs > own).sum(dim=-1) + 1, top.indices, top.values]


def report(ranked: Sequence[Tensor], counts: Sequence[int]) -> list[TokenLogprobsArray]:
    """For each row that was ranked its token's logprob and rank, then its `wanted` likeliest."""
    return [
        TokenLogprobsArray([token, *ids[:count]], [value, *values[:count]], [rank, *range(1, count + 1)])
        for token, (value,), rank, ids, values, count in zip(
            *(one.tolist() for one in ranked), counts, strict=True
        )
    ]


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
