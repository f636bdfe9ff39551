"""Sampling: filtered tokens are never drawn, and a token depends on logits, seed and index alone."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sampling import launch, make_sampler
from transformers import RepetitionPenaltyLogitsProcessor

from engine_server.core.sampling.draw import keep_top_p, philox4x32, uniform
from engine_server.core.scheduling.batch import Scheduled
from engine_server.core.scheduling.request import GenerationRequest
from engine_server.core.scheduling.step_result import StepResult
from engine_server.modeling.platform.cpu import CpuPlatform
from engine_server.requests.sampling_params import SamplingParams
from engine_server.structured.token_rules import continuations

VOCABULARY = 50


def request(output: int = 0, **params) -> GenerationRequest:
    return GenerationRequest("r", [0] * (1 + output), 1, SamplingParams(**params), 100)


def results(logits: torch.Tensor, *requests: GenerationRequest, **options) -> list[StepResult]:
    sampler = make_sampler(logits.shape[1], max_num_seqs=len(requests), **options)
    return launch(sampler, logits.clone(), requests)


def sample(logits: torch.Tensor, *requests: GenerationRequest) -> list[int]:
    return [token for result in results(logits, *requests) for token in result.tokens]


def test_philox_reproduces_the_known_answers_of_random123() -> None:
    """Compare with kat_vectors of Random123."""
    full = 0xFFFFFFFF
    known = [
        ([0, 0, 0, 0], [0, 0], [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([full] * 4, [full] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ]
    for counter, key, expected in known:
        words = philox4x32(np.array(counter, np.uint64)[:, None], np.array(key, np.uint64)[:, None])
        assert words[:, 0].tolist() == expected


def test_random_numbers_are_uniform() -> None:
    numbers = uniform([1234] * 20_000, [0] * 20_000, range(20_000))
    assert numbers.min() >= 0 and numbers.max() < 1
    counts = np.histogram(numbers, bins=20, range=(0, 1))[0]
    assert ((counts - 1000) ** 2 / 1000).sum() < 45  # chi squared of 19 degrees: p < 0.001 beyond


@given(st.integers(0, 2**64 - 1), st.integers(0, 500), st.integers(1, 8), st.integers(0, 7))
def test_token_depends_on_logits_seed_and_index_alone(seed: int, index: int, others: int, place: int) -> None:
    logits = torch.randn(others + 1, VOCABULARY, generator=torch.Generator().manual_seed(index))
    place %= others + 1
    requests = [
        request(number, seed=number, temperature=0.5 + number, top_k=number) for number in range(others + 1)
    ]
    requests[place] = request(index, seed=seed, top_p=0.9)
    assert sample(logits, *requests)[place] == sample(logits[place : place + 1], requests[place])[0]


@given(st.integers(1, VOCABULARY), st.floats(0.05, 1.0), st.integers(0, 2**32))
def test_top_k_and_top_p_draw_only_the_likeliest_tokens(top_k: int, top_p: float, seed: int) -> None:
    logits = torch.randn(1, VOCABULARY, generator=torch.Generator().manual_seed(seed))
    probabilities, order = logits[0].softmax(-1).sort(descending=True)
    nucleus = order[: int((probabilities.cumsum(-1) < top_p + 1e-6).sum()) + 1].tolist()
    rows = logits.expand(20, VOCABULARY)
    by_k = sample(rows, *[request(index, seed=seed, top_k=top_k) for index in range(20)])
    by_p = sample(rows, *[request(index, seed=seed, top_p=top_p) for index in range(20)])
    assert set(by_k) <= set(order[:top_k].tolist())
    assert set(by_p) <= set(nucleus)


def test_token_frequencies_follow_the_probabilities() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log().expand(4000, 4)
    counts = Counter(sample(logits, *[request(index, seed=5) for index in range(4000)]))
    for token, share in enumerate((0.5, 0.3, 0.15, 0.05)):
        assert abs(counts[token] / 4000 - share) < 0.03


def test_random_numbers_differ_between_choices() -> None:
    """Choice and token are words of the counter, so that every pair has its own number."""
    numbers = uniform(
        [9] * 400, [number // 20 for number in range(400)], [number % 20 for number in range(400)]
    )
    assert len(set(numbers.tolist())) == 400
    assert uniform([9], [3], [4]) == numbers[3 * 20 + 4]


def test_top_p_is_exact_where_the_nucleus_exceeds_the_partial_sort(monkeypatch) -> None:
    """A few rows need a full sort; all rows get the same result as without the shortcut."""
    logits = torch.randn(3, 200, generator=torch.Generator().manual_seed(0)) * torch.tensor(
        [[0.1], [1.0], [9.0]]
    )
    p = torch.tensor([[0.9], [0.5], [0.3]])
    whole = keep_top_p(logits, p)
    monkeypatch.setattr("engine_server.core.sampling.draw.NUCLEUS", 20)
    assert torch.equal(keep_top_p(logits, p), whole)
    kept = logits.softmax(-1).where(whole.isfinite(), 0).sum(-1, keepdim=True)
    assert (kept >= p).all() and (whole.isfinite().sum(-1) < 200).all()


@given(st.floats(0.001, 1.0), st.integers(0, 2**32))
def test_min_p_is_relative_to_the_likeliest_token(min_p: float, seed: int) -> None:
    logits = torch.randn(1, VOCABULARY, generator=torch.Generator().manual_seed(seed))
    probabilities = logits[0].softmax(-1)
    allowed = (probabilities >= min_p * probabilities.max() * (1 - 1e-5)).nonzero().flatten().tolist()
    requests = [request(index, seed=seed, min_p=min_p) for index in range(20)]
    assert set(sample(logits.expand(20, VOCABULARY), *requests)) <= set(allowed)


def test_penalties_forget_wrong_drafts_when_a_request_comes_back_to_an_earlier_row() -> None:
    """A request has a wrong draft in row 0, is preempted to row 1, and comes back with as many tokens as drafted."""
    logits = torch.zeros(1, VOCABULARY)
    logits[0, 3], logits[0, 4] = 1.0, 0.9
    sampler = make_sampler(VOCABULARY, max_num_seqs=2)
    one = request(temperature=0, frequency_penalty=0.5)

    def step(row: int, *drafts: int) -> int:
        """Sample the token after the request's own, and one after each draft; return the first."""
        length = len(one.token_ids)
        one.token_ids += drafts
        sampler.sampler.open(row, one)
        batch = [Scheduled(one, row, length - 1, 1, samples=True)]
        batch += [
            Scheduled(one, row, start, 1, samples=True, draft=draft)
            for start, draft in enumerate(drafts, length)
        ]
        tokens = sampler.launch(batch, logits.repeat(len(batch), 1))[0].tokens
        one.token_ids[length:] = tokens
        sampler.sampler.close(row)
        return tokens[0]

    assert [step(0, 9), step(1), step(0)] == [3, 4, 3]


@pytest.mark.transformers
@given(
    st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=12), st.integers(0, 12), st.floats(0.5, 2.0),
    st.floats(-2, 2), st.floats(-2, 2),
)  # fmt: skip
def test_penalties_equal_transformers_and_openai_formulas(
    tokens: list[int], num_prompt: int, repetition: float, presence: float, frequency: float
) -> None:
    """Repetition counts prompt and output, as in transformers; the other two count the output alone, as OpenAI's do."""
    num_prompt = min(num_prompt, len(tokens))
    logits = torch.randn(1, VOCABULARY, generator=torch.Generator().manual_seed(len(tokens)))
    params = SamplingParams(
        temperature=0, repetition_penalty=repetition, presence_penalty=presence, frequency_penalty=frequency
    )
    own = GenerationRequest("r", tokens, num_prompt, params, 100)
    expected = RepetitionPenaltyLogitsProcessor(repetition)(torch.tensor([tokens]), logits.clone())[0]
    for token, times in Counter(tokens[num_prompt:]).items():
        expected[token] -= presence + times * frequency
    launch(make_sampler(VOCABULARY, max_num_seqs=1), logits, [own])
    torch.testing.assert_close(logits[0], expected)


def test_tokens_are_allowed_biased_and_banned() -> None:
    logits = torch.arange(VOCABULARY).float().unsqueeze(0)
    assert sample(logits, request(temperature=0, allowed_token_ids=[4, 9])) == [9]
    assert sample(logits, request(temperature=0, allowed_token_ids=[4, 9], logit_bias={9: -6})) == [4]
    assert sample(logits, request(temperature=0, logit_bias={3: 100})) == [3]
    banned = {"temperature": 0, "bad_words_token_ids": [[49], [7, 8, 48]]}
    for output, expected in (([7, 8], 47), ([8, 8], 48), ([8], 48), ([], 48)):
        one = GenerationRequest("r", [7, *output], 1, SamplingParams(**banned), 100)
        assert sample(logits, one) == [expected]


@pytest.mark.parametrize("broken", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_row_that_cannot_be_sampled_fails_alone(broken: float, temperature: float) -> None:
    logits = torch.randn(3, VOCABULARY)
    good = sample(logits, *[request(seed=1, temperature=temperature)] * 3)
    logits[1] = broken
    first, spoilt, last = results(
        logits, *[request(seed=1, temperature=temperature, logprobs=1) for _ in range(3)]
    )
    assert [*first.tokens, *last.tokens] == good[::2]
    assert first.error is None and last.error is None
    assert spoilt.error is not None


def test_custom_processor_gets_a_copy_of_the_tokens_and_one_row() -> None:
    seen = []

    def spoil(token_ids: list[int], row: torch.Tensor) -> torch.Tensor:
        seen.append((token_ids.copy(), row.shape))
        token_ids.clear()
        return row.flip(0)

    one = GenerationRequest("r", [5, 6, 7], 2, SamplingParams(temperature=0, logits_processors=["a:b"]), 100)
    other = GenerationRequest("s", [5], 1, SamplingParams(temperature=0, logits_processors=["c:d"]), 100)
    custom = {"a:b": spoil, "c:d": lambda token_ids, row: row[:3]}
    first, second = results(torch.arange(VOCABULARY).float().repeat(2, 1), one, other, custom=custom)
    assert first == StepResult([0])
    assert seen == [([5, 6, 7], (VOCABULARY,))]
    assert one.token_ids[:3] == [5, 6, 7]
    assert second.error is not None and second.error.startswith("c:d: RuntimeError")


def test_greedy_takes_the_largest_logit() -> None:
    logits = torch.randn(3, VOCABULARY)
    assert sample(logits, *[request(temperature=0)] * 3) == logits.argmax(-1).tolist()


def test_half_precision_logits_give_the_tokens_of_their_float32_values() -> None:
    """Of tokens that tie, both draw the first."""
    logits = (8 + torch.randn(4, 5000, generator=torch.Generator().manual_seed(0)) / 8).bfloat16()
    assert (logits == logits.amax(-1, keepdim=True)).sum() > 4
    for params in ({"temperature": 0}, {"seed": 3, "top_p": 0.9}, {"temperature": 0, "logit_bias": {7: 9}}):
        requests = [request(**params) for _ in range(4)]
        assert sample(logits, *requests) == sample(logits.float(), *requests)


def test_end_tokens_are_not_drawn_before_min_tokens() -> None:
    logits = torch.zeros(1, VOCABULARY)
    logits[0, 2], logits[0, 7] = 100, 50
    assert sample(logits, request(output=1, temperature=0, min_tokens=2)) != [2]
    assert sample(logits, request(output=1, temperature=0, min_tokens=2, stop_token_ids=[7])) not in (
        [2],
        [7],
    )
    assert sample(logits, request(output=2, temperature=0, min_tokens=2)) == [2]


def test_raw_logprobs_ignore_temperature_and_filters() -> None:
    logits = torch.randn(1, VOCABULARY)
    [one] = results(logits, request(temperature=5.0, top_k=9, seed=3, logprobs=4))
    expected = logits[0].log_softmax(-1)
    assert one.logprobs is not None
    [found] = one.logprobs
    assert found.token_ids[1:] == expected.topk(4).indices.tolist()
    assert found.ranks == [int((expected > expected[one.tokens[0]]).sum()) + 1, 1, 2, 3, 4]
    torch.testing.assert_close(torch.tensor(found.logprobs), expected[found.token_ids])


def test_logprobs_of_the_whole_vocabulary_add_up_to_one() -> None:
    own = request(seed=3)
    own.params.logprobs = -1
    [one] = results(torch.randn(1, VOCABULARY), own)
    assert one.logprobs is not None
    [found] = one.logprobs
    assert sorted(found.token_ids[1:]) == list(range(VOCABULARY))
    assert found.ranks[1:] == list(range(1, VOCABULARY + 1))
    assert sum(np.exp(found.logprobs[1:])) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("raw_logits", [3.0, 2.0, 1.0]),
        ("raw_logprobs", torch.tensor([3.0, 2.0, 1.0]).log_softmax(-1).tolist()),
        # Token 0 has a bias of -5, and the temperature is 2; only the two likeliest are kept.
        ("processed_logits", [1.0, 0.5, -torch.inf]),
        ("processed_logprobs", [*torch.tensor([1.0, 0.5]).log_softmax(-1).tolist(), -torch.inf]),
    ],
)
def test_logprobs_mode_chooses_stage_and_scale(mode: str, expected: list[float]) -> None:
    logits = torch.tensor([[3.0, 2.0, 1.0]])
    own = request(seed=1, temperature=2.0, top_k=2, logit_bias={0: -5.0}, logprobs=3)
    [one] = results(logits, own, logprobs_mode=mode)
    assert one.logprobs is not None
    assert one.logprobs[0].logprobs[1:] == pytest.approx(expected)


def test_processed_logprobs_of_a_greedy_request_have_no_temperature() -> None:
    logits = torch.tensor([[3.0, 2.0, 1.0]])
    own = request(temperature=0, allowed_token_ids=[1, 2], logprobs=1)
    [one] = results(logits, own, logprobs_mode="processed_logits")
    assert one.logprobs is not None
    assert one.logprobs[0].logprobs == [2.0, 2.0]


class CountingPlatform(CpuPlatform):
    """A CPU that counts the numbers copied to the device."""

    def __init__(self) -> None:
        super().__init__()
        self.copied: list[int] = []

    def to_device(self, values: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
        tensor = super().to_device(values, dtype)
        self.copied.append(tensor.numel())
        return tensor


def test_a_step_copies_at_most_a_bit_for_each_token_of_large_token_lists() -> None:
    platform = CountingPlatform()
    size = 20_000
    options = {
        "allowed_token_ids": list(range(0, size, 2)),
        "bad_words_token_ids": [[token] for token in range(9000)] + [[1, 2, token] for token in range(9000)],
        "logit_bias": dict.fromkeys(range(0, size, 4), 1.0),
        "min_tokens": 3,
        "repetition_penalty": 1.5,
    }
    own = request(temperature=0, **options)
    sampler = make_sampler(size, max_num_seqs=1, platform=platform)
    per_step = []
    for _ in range(6):
        platform.copied.clear()
        [result] = launch(sampler, torch.randn(1, size), [own])
        own.token_ids += result.tokens
        per_step.append(sum(platform.copied))
    assert per_step[0] > max(per_step[1:])  # the biases
    assert max(per_step[1:]) <= size / 8 + 3  # also a row's position and length


def test_bad_words_of_several_tokens_are_found_by_their_last_token_but_one() -> None:
    phrases = {8: [([7, 8], 48), ([8], 47)], 3: [([3], 1)]}
    assert continuations(phrases, [7, 8]) == [48, 47]
    assert continuations(phrases, [6, 8]) == [47]
    assert continuations(phrases, [7]) == continuations(phrases, []) == []
