"""A limit of the reasoning under every order of steps: overlapped, preempted, speculated, resumed."""

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from speculating_engines import NGRAM, draft_always
from tiers import tiered

from engine_server import EngineArgs, LLMEngine, RequestOutput, SamplingParams, StructuredOutputsParams
from engine_server.requests.reasoning import Mark, Reasoning

START, END = [40, 41], [50, 51, 50, 52]
OPEN, CLOSE = Mark("GH", START, exact=False), Mark("QRQS", END, exact=False)
# A random model never writes the delimiters by itself.
NEVER = dict.fromkeys([*START, *END], -100.0)
PATTERN = r"(ab|ba|c[0-9]{2}){3,5};"
PROMPT = {"prompt_token_ids": list(range(60, 70))}
OPTIONS: list[dict[str, Any]] = [
    {"seed": 1},
    {"seed": 2, "n": 3},
    {"temperature": 0},
    {"seed": 3, "structured_outputs": StructuredOutputsParams(regex=PATTERN, starts_after=END)},
    {"seed": 4, "allowed_token_ids": list(range(100, 200)), "min_tokens": 20},
    {"seed": 5, "repetition_penalty": 1.3, "bad_words_token_ids": [[50], [51, 50]]},
]


def make(model: Path, *, overlapped: bool = False, blocks: int = 80, **options: Any) -> LLMEngine:
    return LLMEngine.from_engine_args(
        EngineArgs(
            model=str(model), dtype="float32", max_model_len=96, max_num_seqs=8, num_gpu_blocks_override=blocks,
            max_num_batched_tokens=40, disable_log_stats=True, async_scheduling=overlapped, **options,
        )
    )  # fmt: skip


def params(tokens: int = 7, inside: bool = True, **options: Any) -> SamplingParams:
    reasoning = Reasoning(start=[OPEN], end=[CLOSE], inside=inside, budget=tokens)
    defaults = {"max_tokens": 40, "logit_bias": NEVER, "ignore_eos": True}
    return SamplingParams(**defaults | {"reasoning": reasoning} | options)


def answers(engine: LLMEngine, finish) -> list[list[list[int]]]:
    for number, options in enumerate(OPTIONS):
        engine.add_request(str(number), PROMPT, params(**options))
    outputs: dict[str, RequestOutput] = finish(engine)
    return [[one.token_ids for one in outputs[str(number)].outputs] for number in range(len(OPTIONS))]


@pytest.fixture(scope="module")
def usual(tiny_writer: Path) -> LLMEngine:
    """An engine whose steps neither overlap nor have drafts."""
    return make(tiny_writer)


@pytest.fixture(scope="module")
def plain(usual: LLMEngine, finish) -> list[list[list[int]]]:
    return answers(usual, finish)


def test_reasoning_ends_with_its_delimiter_once_the_budget_is_spent(plain) -> None:
    for choices in plain:
        for token_ids in choices:
            assert token_ids[7:11] == END
            assert not set(token_ids[:7]) & set(END)


def test_grammar_begins_after_the_reasoning_that_was_ended(usual: LLMEngine, finish) -> None:
    usual.add_request("r", PROMPT, params(**OPTIONS[3], output_kind=0))
    [completion] = finish(usual)["r"].outputs
    text = usual.get_tokenizer().decode(completion.token_ids[11:], skip_special_tokens=True)
    assert completion.finish_reason == "stop"
    assert re.fullmatch(PATTERN, text)


def test_answer_without_reasoning_is_not_limited(usual: LLMEngine, finish) -> None:
    usual.add_request("free", PROMPT, params(0, inside=False, seed=1, reasoning=None))
    usual.add_request("limited", PROMPT, params(0, inside=False, seed=1))
    outputs = finish(usual)
    assert outputs["limited"].outputs[0].token_ids == outputs["free"].outputs[0].token_ids


def test_reasoning_that_the_answer_opens_counts_from_there(usual: LLMEngine, finish) -> None:
    opened = [70, 71, *START, 72]
    usual.add_request("r", {**PROMPT, "resume_token_ids": opened}, params(3, inside=False, seed=1))
    [completion] = finish(usual)["r"].outputs
    assert completion.token_ids[:5] == opened
    assert completion.token_ids[7:11] == END


def test_delimiter_that_has_begun_within_the_budget_is_completed(usual: LLMEngine, finish) -> None:
    begun = [70, 50, 51]
    usual.add_request("r", {**PROMPT, "resume_token_ids": begun}, params(3, seed=1))
    [completion] = finish(usual)["r"].outputs
    assert completion.token_ids[1:5] == END


@pytest.mark.more
@pytest.mark.parametrize(("overlapped", "blocks"), tiered([(True, 80), (False, 12), (True, 12)], (True, 12)))
def test_tokens_are_the_same_overlapped_and_preempted(
    tiny_writer: Path, finish, plain, overlapped: bool, blocks: int
) -> None:
    engine = make(tiny_writer, overlapped=overlapped, blocks=blocks)
    assert answers(engine, finish) == plain
    engine.check_integrity()


@pytest.mark.more
@pytest.mark.parametrize("overlapped", tiered([False, True], True))
def test_tokens_are_the_same_with_drafts(tiny_writer: Path, finish, plain, overlapped: bool) -> None:
    engine = make(tiny_writer, overlapped=overlapped, speculative_config=NGRAM)
    draft_always(engine)
    assert answers(engine, finish) == plain


def test_request_resumed_at_any_token_gives_the_rest(tiny_writer: Path, finish, plain) -> None:
    engine = make(tiny_writer, overlapped=True)
    [whole] = plain[0]
    for count in range(1, len(whole)):
        engine.add_request(str(count), {**PROMPT, "resume_token_ids": whole[:count]}, params(seed=1))
    for output in finish(engine).values():
        assert output.outputs[0].token_ids == whole


@pytest.mark.more
def test_draft_of_an_end_within_the_reasoning_is_verified(
    usual: LLMEngine, tiny_writer: Path, finish
) -> None:
    """Drafts that copy the end delimiter from the prompt are right where the budget demands it."""
    prompt = {"prompt_token_ids": [60, 61, *END, 60, 61, *END]}
    speculated = make(tiny_writer, speculative_config=NGRAM)
    draft_always(speculated)
    results = []
    for engine in (usual, speculated):
        engine.add_request("r", prompt, params(0, temperature=0))
        results.append(finish(engine)["r"].outputs[0].token_ids)
    assert results[0] == results[1]
    assert results[0][:4] == END
    assert all(pair != (50, 51) for pair in pairwise(results[0][4:]))
