"""Sampling by the kernels, compared with plain torch for the same logits."""

from collections.abc import Callable
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreted import InterpretedPlatform
from sampling import TestedSampler, launch, make_sampler
from torch import Tensor

from engine_server.core.sampling.draw import uniform
from engine_server.core.sampling.row_parameters import RowParameters
from engine_server.core.scheduling.batch import Scheduled
from engine_server.core.scheduling.request import GenerationRequest
from engine_server.core.scheduling.step_result import StepResult
from engine_server.modeling.platform.cuda import TritonPlatform
from engine_server.requests.sampling_params import SamplingParams

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # intentional log(0) and similar

ROWS = 8
Kernels = Callable[[int], TestedSampler]


@pytest.fixture(scope="module")
def kernels_of(device: torch.device) -> Callable[[int], TestedSampler]:
    """Return samplers that use the kernels, one for each size of vocabulary."""

    platform = TritonPlatform(device) if device.type == "cuda" else InterpretedPlatform(device)

    @cache
    def make(vocabulary: int) -> TestedSampler:
        return make_sampler(vocabulary, ROWS, platform)

    return make


def request(output: int = 0, choice_index: int = 0, **params) -> GenerationRequest:
    return GenerationRequest(
        "r", [1] * (1 + output), 1, SamplingParams(**params), 100, choice_index=choice_index
    )


def sample(sampler: TestedSampler, logits: Tensor, requests: list[GenerationRequest]) -> list[StepResult]:
    return launch(sampler, logits, requests)


def tokens(sampler: TestedSampler, logits: Tensor, requests: list[GenerationRequest]) -> list[int]:
    results = sample(sampler, logits.clone(), requests)
    assert not any(result.error for result in results)
    return [token for result in results for token in result.tokens]


def check(
    kernels_of: Kernels, device: torch.device, logits: Tensor, requests: list[GenerationRequest]
) -> list[int]:
    """Sample by the kernels and by plain torch, and check that the tokens are equal, and return them."""
    vocabulary = logits.shape[1]
    expected = tokens(make_sampler(vocabulary, ROWS), logits, requests)
    assert tokens(kernels_of(vocabulary), logits.to(device), requests) == expected
    return expected


PARAMS = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.3, 1.0, 5.0]),
        "top_k": st.sampled_from([0, 1, 2, 7, 40, 1000]),
        "top_p": st.sampled_from([1.0, 0.999, 0.9, 0.3, 1e-6]),
        "min_p": st.sampled_from([0.0, 0.0, 0.001, 0.2, 1.0]),
        "seed": st.integers(-(2**63), 2**64 - 1),
        "output": st.integers(0, 50),
        "choice_index": st.integers(0, 9),
    }
)


@settings(max_examples=10, derandomize=True)  # Triton's interpreter is slow
@given(
    params=st.lists(PARAMS, min_size=1, max_size=4), vocabulary=st.sampled_from([1, 31, 97, 250]),
    spread=st.sampled_from([0.1, 3.0, 30.0]), dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)  # fmt: skip
def test_kernel_samples_the_tokens_of_plain_torch(
    kernels_of: Kernels, device: torch.device, params: list[dict], vocabulary: int, spread: float, dtype
) -> None:
    logits = torch.randn(len(params), vocabulary, generator=torch.Generator().manual_seed(vocabulary))
    check(kernels_of, device, (spread * logits).to(dtype), [request(**one) for one in params])


def test_kernel_samples_from_a_large_vocabulary(kernels_of: Kernels, device: torch.device) -> None:
    """Rows have more logits than a program compares together, and are not aligned."""
    size = 5001 if device.type == "cpu" else 151_935
    logits = 3 * torch.randn(6, size, generator=torch.Generator().manual_seed(0)).bfloat16()
    options = [
        {"top_p": 0.9}, {"top_k": 300}, {"min_p": 0.01, "top_p": 0.7}, {"top_k": 4000, "top_p": 0.99}, {},
        {"temperature": 0},
    ]  # fmt: skip
    requests = [request(seed=7, **one) for one in options]
    expected = tokens(make_sampler(size, ROWS), logits, requests)
    found = tokens(kernels_of(size), logits.to(device), requests)
    differing = sum(map(int.__ne__, found, expected))
    assert differing <= (device.type != "cpu")  # a GPU may round a number to the next token


def test_kernel_keeps_all_tokens_that_tie_at_a_threshold(kernels_of: Kernels, device: torch.device) -> None:
    """Greedy sampling takes the first of the tokens that tie; 0.0 and -0.0 are equal."""
    for ties in (torch.tensor([2.0, 2.0, 2.0]), torch.tensor([0.0, -0.0, 0.0])):
        logits = torch.full((ROWS, 100), -3.0)
        logits[:, 10::30] = ties
        options = [{"top_k": 1}, {"top_k": 2}, {"top_p": 0.5, "temperature": 0.1}, {"min_p": 1.0}]
        requests = [request(seed=row, **options[row % 4]) for row in range(ROWS - 1)]
        drawn = check(kernels_of, device, logits, [*requests, request(temperature=0)])
        assert set(drawn) == {10, 40, 70} and drawn[-1] == 10


def test_kernel_never_draws_a_token_of_probability_zero(kernels_of: Kernels, device: torch.device) -> None:
    logits = torch.full((ROWS, 130), -torch.inf)
    logits[:, 128] = 1.0
    logits[:, 65] = 1.0
    options = [{}, {"top_p": 0.999}, {"top_k": 100}, {"min_p": 0.1}]
    requests = [request(seed=row, **options[row % 4]) for row in range(ROWS)]
    assert set(check(kernels_of, device, logits, requests)) == {65, 128}


@pytest.mark.parametrize("broken", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("options", [{"temperature": 0}, {}, {"top_k": 3, "top_p": 0.5}])
def test_kernel_row_that_cannot_be_sampled_fails_alone(
    kernels_of: Kernels, device: torch.device, broken: float, options: dict
) -> None:
    logits = torch.randn(3, 70)
    good = tokens(make_sampler(70, ROWS), logits, [request(seed=1, **options)] * 3)
    logits[1, 40 if broken != -torch.inf else slice(None)] = broken
    results = sample(kernels_of(70), logits.to(device), [request(seed=1, **options)] * 3)
    assert [result.error is not None for result in results] == [False, True, False]
    assert [*results[0].tokens, *results[2].tokens] == good[::2]


@settings(max_examples=10, derandomize=True)  # Triton's interpreter is slow
@given(seed=st.integers(0, 2**64 - 1), choice_index=st.integers(0, 2**32 - 1), index=st.integers(0, 2**20))
def test_kernel_draws_the_random_number_of_plain_torch(
    kernels_of: Kernels, device: torch.device, seed: int, choice_index: int, index: int
) -> None:
    """Of 256 equally likely tokens the number's first 8 bits choose one."""
    own = request(index, choice_index, seed=seed)
    [token] = tokens(kernels_of(256), torch.zeros(1, 256, device=device), [own])
    assert token == int(uniform([seed], [choice_index], [index])[0] * 256)


def test_kernel_tokens_are_independent_of_other_rows_and_padding(
    kernels_of: Kernels, device: torch.device
) -> None:
    logits = 3 * torch.randn(ROWS, 200, generator=torch.Generator().manual_seed(1))
    options = [{}, {"temperature": 0}, {"top_p": 0.95}, {"top_k": 3}, {}, {"min_p": 0.1}]
    requests = [request(seed=row, output=row, **one) for row, one in enumerate(options)]
    own = kernels_of(200).sampler.kernels
    assert own is not None
    parameters = RowParameters(ROWS)
    for row, one in enumerate(requests):
        parameters.open(row, one.params, one.choice_index)
    parts = [Scheduled(one, row, len(one.token_ids) - 1, 1, True) for row, one in enumerate(requests)]
    own.fill(parameters.records(parts))
    drawn, largest = own.sample(logits.to(device), None)
    assert torch.equal(largest.cpu(), logits.amax(-1))
    alone = [
        tokens(kernels_of(200), logits[row : row + 1].to(device), [one])[0]
        for row, one in enumerate(requests)
    ]
    assert drawn[:-2].tolist() == alone


def test_penalties_count_tokens_that_the_host_does_not_know(
    kernels_of: Kernels, device: torch.device
) -> None:
    """A request that reuses a row of the tables starts with counts of its own tokens."""
    penalties = [
        {"repetition_penalty": 1.8}, {"frequency_penalty": 1.5, "temperature": 0}, {"presence_penalty": 2.0},
        {"repetition_penalty": 0.6, "frequency_penalty": -0.4, "presence_penalty": -1.0, "logprobs": 2},
        {"temperature": 0, "logit_bias": {3: 1.0}, "min_tokens": 2, "allowed_token_ids": [2, 3, 4]},
    ]  # fmt: skip
    generator = torch.Generator().manual_seed(3)
    for _ in range(2):
        known, unknown = (
            [
                GenerationRequest("r", [5, 6, 5, 9], 3, SamplingParams(seed=row, **one), 100)
                for row, one in enumerate(penalties)
            ]
            for _ in range(2)
        )
        assert not any(one.params.needs_last_token for one in unknown)
        for _ in range(5):
            logits = torch.randn(len(penalties), 12, generator=generator)
            expected = sample(make_sampler(12, ROWS), logits.clone(), known)
            results = sample(kernels_of(12), logits.to(device), unknown)
            assert [result.tokens for result in results] == [result.tokens for result in expected]
            assert results[3].logprobs and expected[3].logprobs
            assert results[3].logprobs[0].ranks == expected[3].logprobs[0].ranks
            for one, other, result in zip(known, unknown, expected, strict=True):
                one.token_ids += result.tokens
                other.token_ids.append(-1)
