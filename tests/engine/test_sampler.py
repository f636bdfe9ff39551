"""Sampling: what is filtered never comes, and a seed's token depends on nothing else."""

from collections import Counter

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_server.engine.core.request import Request
from engine_server.engine.core.sampler import Sampler, philox4x32, uniform
from engine_server.engine.sampling_params import SamplingParams

VOCABULARY = 50


def request(output: int = 0, **params) -> Request:
    return Request("r", [0] * (1 + output), 1, SamplingParams(**params), 100)


def sample(logits: torch.Tensor, *requests: Request) -> list[int]:
    return [one.token_id for one in Sampler([2], {}).sample(logits.clone(), requests)]


def test_philox_gives_its_authors_known_answers() -> None:
    """kat_vectors of Random123."""
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


def test_uniforms_are_uniform() -> None:
    numbers = uniform([1234] * 20_000, [0] * 20_000, range(20_000))
    assert numbers.min() >= 0 and numbers.max() < 1
    counts = np.histogram(numbers, bins=20, range=(0, 1))[0]
    assert ((counts - 1000) ** 2 / 1000).sum() < 45  # chi squared of 19 degrees: p < 0.001 beyond


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**64 - 1), st.integers(0, 500), st.integers(1, 8), st.integers(0, 7))
def test_a_token_depends_on_logits_seed_and_index_alone(
    seed: int, index: int, others: int, place: int
) -> None:
    logits = torch.randn(others + 1, VOCABULARY, generator=torch.Generator().manual_seed(index))
    place %= others + 1
    requests = [
        request(number, seed=number, temperature=0.5 + number, top_k=number) for number in range(others + 1)
    ]
    requests[place] = request(index, seed=seed, top_p=0.9)
    assert sample(logits, *requests)[place] == sample(logits[place : place + 1], requests[place])[0]


@settings(max_examples=50, deadline=None)
@given(st.integers(1, VOCABULARY), st.floats(0.05, 1.0), st.integers(0, 2**32))
def test_filters_keep_the_likeliest(top_k: int, top_p: float, seed: int) -> None:
    logits = torch.randn(1, VOCABULARY, generator=torch.Generator().manual_seed(seed))
    probabilities, order = logits[0].softmax(-1).sort(descending=True)
    nucleus = order[: int((probabilities.cumsum(-1) < top_p - 1e-6).sum()) + 1].tolist()
    by_k = [sample(logits, request(index, seed=seed, top_k=top_k))[0] for index in range(20)]
    by_p = [sample(logits, request(index, seed=seed, top_p=top_p))[0] for index in range(20)]
    assert set(by_k) <= set(order[:top_k].tolist())
    assert set(by_p) <= set(nucleus)


def test_frequencies_follow_the_probabilities() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log().expand(4000, 4)
    counts = Counter(sample(logits, *[request(index, seed=5) for index in range(4000)]))
    for token, share in enumerate((0.5, 0.3, 0.15, 0.05)):
        assert abs(counts[token] / 4000 - share) < 0.03


def test_greedy_takes_the_largest() -> None:
    logits = torch.randn(3, VOCABULARY)
    assert sample(logits, *[request(temperature=0)] * 3) == logits.argmax(-1).tolist()


def test_no_end_before_min_tokens() -> None:
    logits = torch.zeros(1, VOCABULARY)
    logits[0, 2], logits[0, 7] = 100, 50
    assert sample(logits, request(output=1, temperature=0, min_tokens=2)) != [2]
    assert sample(logits, request(output=1, temperature=0, min_tokens=2, stop_token_ids=[7])) not in (
        [2],
        [7],
    )
    assert sample(logits, request(output=2, temperature=0, min_tokens=2)) == [2]


def test_logprobs_are_the_models_own() -> None:
    logits = torch.randn(1, VOCABULARY)
    (one,) = Sampler([2], {}).sample(logits.clone(), [request(temperature=5.0, top_k=9, seed=3, logprobs=4)])
    expected = logits[0].log_softmax(-1)
    assert one.logprobs is not None
    assert one.logprobs.token_ids[1:] == expected.topk(4).indices.tolist()
    assert one.logprobs.ranks == [int((expected > expected[one.token_id]).sum()) + 1, 1, 2, 3, 4]
    torch.testing.assert_close(torch.tensor(one.logprobs.logprobs), expected[one.logprobs.token_ids])
