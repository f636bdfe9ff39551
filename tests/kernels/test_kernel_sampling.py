"""Sampling by the kernels: the tokens that plain torch gives for the same logits."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreted import InterpretedPlatform
from torch import Tensor

from engine_server.core.heads.sampler import Sampler, uniform
from engine_server.core.scheduling.request import Request
from engine_server.core.scheduling.scheduler import Sampled
from engine_server.modeling.platform.cpu import CpuPlatform
from engine_server.modeling.platform.cuda import TritonPlatform
from engine_server.requests.sampling_params import SamplingParams

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # log(0) and the like, which are meant

ROWS = 8


@pytest.fixture(scope="module")
def by_kernels(device: torch.device) -> Sampler:
    platform = TritonPlatform(device) if device.type == "cuda" else InterpretedPlatform(device)
    return Sampler([2], {}, platform, ROWS, 100)


def plain() -> Sampler:
    return Sampler([2], {}, CpuPlatform(), ROWS, 100)


def request(output: int = 0, child: int = 0, row: int = 0, **params) -> Request:
    return Request("r", [1] * (1 + output), 1, SamplingParams(**params), 100, choice_index=child, row=row)


def sample(sampler: Sampler, logits: Tensor, requests: list[Request]) -> list[Sampled]:
    sampler.prepare(requests)
    return sampler.launch(logits, requests).collect()


def tokens(sampler: Sampler, logits: Tensor, requests: list[Request]) -> list[int]:
    samples = sample(sampler, logits.clone(), requests)
    assert not any(sampled.error for sampled in samples)
    return [sampled.token_id for sampled in samples]


def check(by_kernels: Sampler, device: torch.device, logits: Tensor, requests: list[Request]) -> list[int]:
    expected = tokens(plain(), logits, requests)
    assert tokens(by_kernels, logits.to(device), requests) == expected
    return expected


PARAMS = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.3, 1.0, 5.0]),
        "top_k": st.sampled_from([0, 1, 2, 7, 40, 1000]),
        "top_p": st.sampled_from([1.0, 0.999, 0.9, 0.3, 1e-6]),
        "min_p": st.sampled_from([0.0, 0.0, 0.001, 0.2, 1.0]),
        "seed": st.integers(-(2**63), 2**64 - 1),
        "output": st.integers(0, 50),
        "child": st.integers(0, 9),
    }
)


@settings(max_examples=10, deadline=None, derandomize=True)
@given(
    params=st.lists(PARAMS, min_size=1, max_size=4), vocabulary=st.sampled_from([1, 31, 97, 250]),
    spread=st.sampled_from([0.1, 3.0, 30.0]), dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)  # fmt: skip
def test_sampling_kernel_draws_the_tokens_of_torch(
    by_kernels: Sampler, device: torch.device, params: list[dict], vocabulary: int, spread: float, dtype
) -> None:
    logits = torch.randn(len(params), vocabulary, generator=torch.Generator().manual_seed(vocabulary))
    check(by_kernels, device, (spread * logits).to(dtype), [request(**one) for one in params])


def test_sampling_kernel_takes_a_large_vocabulary(by_kernels: Sampler, device: torch.device) -> None:
    """More logits than a program compares at once, in rows that don't begin where a word does."""
    size = 5001 if device.type == "cpu" else 151_935
    logits = 3 * torch.randn(6, size, generator=torch.Generator().manual_seed(0)).bfloat16()
    options = [
        {"top_p": 0.9}, {"top_k": 300}, {"min_p": 0.01, "top_p": 0.7}, {"top_k": 4000, "top_p": 0.99}, {},
        {"temperature": 0},
    ]  # fmt: skip
    requests = [request(seed=7, **one) for one in options]
    expected = tokens(plain(), logits, requests)
    differing = sum(map(int.__ne__, tokens(by_kernels, logits.to(device), requests), expected))
    assert differing <= (device.type != "cpu")  # a GPU may round a number to the next token


def test_sampling_kernel_keeps_tied_tokens(by_kernels: Sampler, device: torch.device) -> None:
    """At a threshold all, of the likeliest the first; a zero is a zero, whatever its sign."""
    for ties in (torch.tensor([2.0, 2.0, 2.0]), torch.tensor([0.0, -0.0, 0.0])):
        logits = torch.full((ROWS, 100), -3.0)
        logits[:, 10::30] = ties
        options = [{"top_k": 1}, {"top_k": 2}, {"top_p": 0.5, "temperature": 0.1}, {"min_p": 1.0}]
        requests = [request(seed=row, **options[row % 4]) for row in range(ROWS - 1)]
        drawn = check(by_kernels, device, logits, [*requests, request(temperature=0)])
        assert set(drawn) == {10, 40, 70} and drawn[-1] == 10


def test_sampling_kernel_never_draws_tokens_of_probability_zero(
    by_kernels: Sampler, device: torch.device
) -> None:
    logits = torch.full((ROWS, 130), -torch.inf)
    logits[:, 128] = 1.0
    logits[:, 65] = 1.0
    options = [{}, {"top_p": 0.999}, {"top_k": 100}, {"min_p": 0.1}]
    requests = [request(seed=row, **options[row % 4]) for row in range(ROWS)]
    assert set(check(by_kernels, device, logits, requests)) == {65, 128}


@pytest.mark.parametrize("broken", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("options", [{"temperature": 0}, {}, {"top_k": 3, "top_p": 0.5}])
def test_row_without_finite_logits_fails_alone(
    by_kernels: Sampler, device: torch.device, broken: float, options: dict
) -> None:
    logits = torch.randn(3, 70)
    good = tokens(plain(), logits, [request(seed=1, **options)] * 3)
    logits[1, 40 if broken != -torch.inf else slice(None)] = broken
    samples = sample(by_kernels, logits.to(device), [request(seed=1, **options)] * 3)
    assert [bool(one.error) for one in samples] == [False, True, False]
    assert [samples[0].token_id, samples[2].token_id] == good[::2]


@settings(max_examples=10, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**64 - 1), child=st.integers(0, 2**32 - 1), index=st.integers(0, 2**20))
def test_sampling_kernel_draws_the_uniform_numbers_of_torch(
    by_kernels: Sampler, device: torch.device, seed: int, child: int, index: int
) -> None:
    """Of 256 tokens that are equally likely, the one that the first 8 bits say."""
    one = Request("r", range(index + 1), 1, SamplingParams(seed=seed), 1 << 30, choice_index=child, row=0)
    (token,) = tokens(by_kernels, torch.zeros(1, 256, device=device), [one])
    assert token == int(uniform([seed], [child], [index])[0] * 256)


def test_sampled_tokens_are_independent_of_other_rows(by_kernels: Sampler, device: torch.device) -> None:
    """Nor do rows that only fill a graph up disturb."""
    logits = 3 * torch.randn(ROWS, 200, generator=torch.Generator().manual_seed(1))
    options = [{}, {"temperature": 0}, {"top_p": 0.95}, {"top_k": 3}, {}, {"min_p": 0.1}]
    requests = [request(seed=row, output=row, **one) for row, one in enumerate(options)]
    assert by_kernels.kernels
    by_kernels.prepare(requests)
    drawn, largest = by_kernels.kernels.sample(logits.to(device))
    assert torch.equal(largest.cpu(), logits.amax(-1))
    launched = by_kernels.launch(logits[:-2].to(device), requests, (drawn[:-2], largest[:-2]))
    together = [one.token_id for one in launched.collect()]
    assert together == [
        tokens(by_kernels, logits[row : row + 1].to(device), [one])[0] for row, one in enumerate(requests)
    ]


def test_sampling_kernel_counts_drawn_tokens_for_penalties(by_kernels: Sampler, device: torch.device) -> None:
    """The host need not know what it penalises; who comes into another's row starts anew."""
    penalties = [
        {"repetition_penalty": 1.8}, {"frequency_penalty": 1.5, "temperature": 0}, {"presence_penalty": 2.0},
        {"repetition_penalty": 0.6, "frequency_penalty": -0.4, "presence_penalty": -1.0, "logprobs": 2},
        {"temperature": 0, "logit_bias": {3: 1.0}, "min_tokens": 2, "allowed_token_ids": [2, 3, 4]},
    ]  # fmt: skip
    generator = torch.Generator().manual_seed(3)
    for _ in range(2):
        known, unknown = (
            [
                Request("r", [5, 6, 5, 9], 3, SamplingParams(seed=row, **one), 100, row=row)
                for row, one in enumerate(penalties)
            ]
            for _ in range(2)
        )
        assert not any(one.params.needs_last_token for one in unknown)
        for _ in range(5):
            logits = torch.randn(len(penalties), 12, generator=generator)
            expected = sample(plain(), logits.clone(), known)
            samples = sample(by_kernels, logits.to(device), unknown)
            assert [one.token_id for one in samples] == [one.token_id for one in expected]
            assert samples[3].logprobs and expected[3].logprobs
            assert samples[3].logprobs.ranks == expected[3].logprobs.ranks
            for one, other, sampled in zip(known, unknown, expected, strict=True):
                one.token_ids.append(sampled.token_id)
                other.token_ids.append(-1)
