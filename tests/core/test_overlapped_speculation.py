"""Overlapped steps of engines that draft: they overlap while no drafts are wanted."""

from pathlib import Path
from typing import Any

import pytest
from fake_runner import FakeRunner
from speculating_engines import contents, make, run, set_price_of_drafts
from step_counts import Counts

from engine_server import LLMEngine, SamplingParams
from engine_server.core.sampling.sampler import PendingTokens

NUM_TOKENS = 40
# Drafts are copied once three tokens have occurred before.
NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 3, "prompt_lookup_max": 3}
# A bias makes the output periodic, so that drafts copied from it are right.
PERIODIC = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, logit_bias={9: 100.0}, ignore_eos=True)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list to which "forward" is appended for each launched step, and "collect" for each collected one."""
    calls: list[str] = []
    forward, collect = FakeRunner.forward, PendingTokens.collect
    monkeypatch.setattr(
        FakeRunner, "forward", lambda self, inputs: (calls.append("forward"), forward(self, inputs))[1]
    )
    monkeypatch.setattr(PendingTokens, "collect", lambda self: (calls.append("collect"), collect(self))[1])
    return calls


def generate(engine: LLMEngine, finish) -> list[list[Any]]:
    return contents(run(engine, finish, [([3, 4], PERIODIC)]))


def test_steps_overlap_until_drafts_are_wanted(tiny_llama: Path, finish, calls: list[str]) -> None:
    expected = generate(make(tiny_llama, None, executor_class=FakeRunner), finish)
    counts = Counts()
    engine = make(tiny_llama, NGRAM, counts, FakeRunner, async_scheduling=True)
    calls.clear()

    assert generate(engine, finish) == expected

    assert calls[:5] == ["forward", "forward", "collect", "forward", "collect"]
    assert calls[-4:] == ["forward", "collect"] * 2, "drafts were made before the last token was known"
    assert counts.accepted == counts.drafted > 0
    assert calls.count("forward") < NUM_TOKENS / 2


@pytest.mark.parametrize("method", ["ngram", "draft model"])
def test_steps_overlap_where_no_drafts_pay(tiny_llama: Path, method: str, finish, calls: list[str]) -> None:
    counts = Counts()
    settings = NGRAM if method == "ngram" else {"model": str(tiny_llama)}
    engine = make(tiny_llama, settings, counts, FakeRunner, async_scheduling=True)
    set_price_of_drafts(engine, 1.0)
    calls.clear()

    generate(engine, finish)

    assert calls == ["forward", *["forward", "collect"] * (NUM_TOKENS - 1), "collect"]
    assert counts.drafted == 0


def test_copied_drafts_are_compared_with_tokens_of_overlapped_steps(tiny_llama: Path, finish) -> None:
    """They don't pay at the acceptance that is assumed at first, and there are too few steps for a trial."""
    price, counts = 0.6, {overlapped: Counts() for overlapped in (False, True)}
    for overlapped in counts:
        engine = make(tiny_llama, NGRAM, counts[overlapped], FakeRunner, async_scheduling=overlapped)
        set_price_of_drafts(engine, price)
        generate(engine, finish)
    assert counts[False].drafted == 0
    assert counts[True].accepted > 0
