"""Where the grammar of an answer with reasoning begins, under every order of steps."""

import re
from pathlib import Path
from typing import Any

import pytest
from speculating_engines import NGRAM, draft_always
from tiers import tiered

from engine_server import EngineArgs, LLMEngine, RequestOutput, SamplingParams, StructuredOutputsParams
from engine_server.requests.reasoning import Mark, Reasoning

EOS, START, END, OTHER_END, CALL, SPACE = 1, 40, 50, 51, 60, 222
MARKS = {
    "start": [Mark("G", [START], exact=True)],
    "end": [Mark("Q", [END], exact=True), Mark("R", [OTHER_END], exact=True)],
    "calls": [Mark("[", [CALL], exact=True)],
}
INSIDE, UNDECIDED = Reasoning(**MARKS, inside=True), Reasoning(**MARKS)
PAST = Reasoning(end=MARKS["end"])
# The form, after which a call may be written instead, and white space before it.
PATTERN = r" ?(\[x[0-9]\]|(ab|ba|c[0-9]{2}){3,5};)"
FORM = StructuredOutputsParams(regex=PATTERN)
PROMPT = {"prompt_token_ids": list(range(60, 70))}
# A model that writes no mark.
NEVER = dict.fromkeys([START, END, OTHER_END, CALL, EOS], -100.0)


def bias(**likely: float) -> dict[int, float]:
    return NEVER | {globals()[name]: value for name, value in likely.items()}


def limited(reasoning: Reasoning, budget: int) -> Reasoning:
    return Reasoning(**MARKS, inside=reasoning.inside, budget=budget)


# By name: a random model whose answers differ in their thoughts.
CASES: dict[str, dict[str, Any]] = {
    "thinks and closes": {"reasoning": INSIDE, "logit_bias": bias(END=2.5, EOS=-2.0), "seed": 1},
    "closes otherwise": {"reasoning": INSIDE, "logit_bias": bias(OTHER_END=2.0, EOS=-2.0), "seed": 2, "n": 3},
    "wants to end": {"reasoning": INSIDE, "logit_bias": bias(EOS=3.0), "seed": 3, "n": 3},
    "wants nothing but to end": {"reasoning": INSIDE, "logit_bias": bias(EOS=100.0), "temperature": 0},
    "calls": {"reasoning": INSIDE, "logit_bias": bias(CALL=2.0), "seed": 4},
    "opens thoughts": {"reasoning": UNDECIDED, "logit_bias": bias(START=9.0, END=2.5), "seed": 5},
    "opens no thoughts": {"reasoning": UNDECIDED, "logit_bias": bias(), "seed": 6},
    "is past its thoughts": {"reasoning": PAST, "logit_bias": bias(START=9.0), "seed": 7},
    "has a budget": {"reasoning": limited(INSIDE, 5), "logit_bias": bias(), "seed": 8, "n": 2},
    "has a budget and opens": {"reasoning": limited(UNDECIDED, 0), "logit_bias": bias(START=9.0), "seed": 9},
    "has other limits": {
        "reasoning": limited(INSIDE, 9), "logit_bias": bias(EOS=2.0), "seed": 10, "ignore_eos": True,
        "repetition_penalty": 1.3, "bad_words_token_ids": [[70], [71, 72]], "logprobs": 2,
    },
}  # fmt: skip


def make(model: Path, *, overlapped: bool = False, blocks: int = 120, **options: Any) -> LLMEngine:
    return LLMEngine.from_engine_args(
        EngineArgs(
            model=str(model), dtype="float32", max_model_len=160, max_num_seqs=8, num_gpu_blocks_override=blocks,
            max_num_batched_tokens=40, disable_log_stats=True, async_scheduling=overlapped, **options,
        )
    )  # fmt: skip


def params(**options: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 120, "structured_outputs": FORM, "logit_bias": NEVER} | options)


def answers(engine: LLMEngine, finish) -> dict[str, list[tuple[list[int], str | None]]]:
    for name, options in CASES.items():
        engine.add_request(name, PROMPT, params(**options))
    outputs: dict[str, RequestOutput] = finish(engine)
    return {
        name: [(one.token_ids, one.finish_reason) for one in output.outputs]
        for name, output in sorted(outputs.items())
    }


def answer(engine: LLMEngine, finish, prompt: dict[str, Any] = PROMPT, **options: Any) -> list[int]:
    engine.add_request("r", prompt, params(**{"seed": 1} | options))
    token_ids: list[int] = finish(engine)["r"].outputs[0].token_ids
    return token_ids


def parts(token_ids: list[int], inside: bool) -> tuple[list[int], list[int]]:
    """Return an answer's thoughts and the rest, without the marks of the thoughts."""
    if not inside:
        first = next(index for index, token_id in enumerate(token_ids) if token_id != SPACE)
        if token_ids[first] != START:
            return [], token_ids
        token_ids = token_ids[first + 1 :]
    end = next(index for index, token_id in enumerate(token_ids) if token_id in (END, OTHER_END, CALL))
    return token_ids[:end], token_ids[end + (token_ids[end] != CALL) :]


@pytest.fixture(scope="module")
def usual(tiny_writer: Path) -> LLMEngine:
    """An engine whose steps neither overlap nor have drafts."""
    return make(tiny_writer)


@pytest.fixture(scope="module")
def overlapped(tiny_writer: Path) -> LLMEngine:
    return make(tiny_writer, overlapped=True)


@pytest.fixture(scope="module")
def plain(usual: LLMEngine, finish) -> dict[str, list[tuple[list[int], str | None]]]:
    return answers(usual, finish)


@pytest.mark.parametrize("name", CASES)
def test_demanded_form_follows_the_thoughts_of_every_answer(usual: LLMEngine, plain, name: str) -> None:
    reasoning: Reasoning = CASES[name]["reasoning"]
    for token_ids, reason in plain[name]:
        assert reason == "stop"
        thoughts, rest = parts(token_ids, reasoning.inside)
        assert EOS not in thoughts
        assert reasoning.budget is None or len(thoughts) <= reasoning.budget
        assert rest[-1] == EOS
        assert re.fullmatch(PATTERN, usual.get_tokenizer().decode(rest[:-1]))


def test_cases_have_thoughts_and_ends_of_every_kind(plain) -> None:
    thoughts = {name: parts(plain[name][0][0], CASES[name]["reasoning"].inside)[0] for name in CASES}
    with_thoughts = {name for name, found in thoughts.items() if found}
    assert with_thoughts >= {"thinks and closes", "calls", "opens thoughts", "has a budget"}
    assert not thoughts["opens no thoughts"] and not thoughts["is past its thoughts"]
    assert plain["wants nothing but to end"][0][0][0] == END
    assert any(OTHER_END in token_ids for token_ids, _ in plain["closes otherwise"])
    assert CALL in plain["calls"][0][0]
    assert plain["opens thoughts"][0][0][0] == START
    assert len(thoughts["has a budget"]) == 5
    assert plain["has a budget and opens"][0][0][:2] == [START, END]


def test_answer_that_reaches_its_limit_within_its_thoughts_ends_there(usual: LLMEngine, finish) -> None:
    usual.add_request("r", PROMPT, params(reasoning=INSIDE, seed=1, max_tokens=9))
    [completion] = finish(usual)["r"].outputs
    assert (len(completion.token_ids), completion.finish_reason) == (9, "length")


def test_stop_token_ends_the_answer_within_its_thoughts(usual: LLMEngine, finish) -> None:
    options = {"reasoning": INSIDE, "logit_bias": NEVER | {100: 100.0}, "stop_token_ids": [100]}
    assert answer(usual, finish, **options) == [100]


def test_thoughts_go_on_until_min_tokens_where_the_model_wants_to_end(usual: LLMEngine, finish) -> None:
    options = {"reasoning": INSIDE, "logit_bias": bias(EOS=100.0), "min_tokens": 6}
    token_ids = answer(usual, finish, **options)
    assert token_ids.index(END) == 6


def test_call_that_the_grammar_excludes_does_not_end_the_thoughts(usual: LLMEngine, finish) -> None:
    form = StructuredOutputsParams(regex="(ab|ba){3}")
    begun = {**PROMPT, "resume_token_ids": [70, CALL, 71]}
    token_ids = answer(
        usual, finish, begun, reasoning=INSIDE, structured_outputs=form, logit_bias=bias(EOS=100.0)
    )
    assert token_ids[:4] == [70, CALL, 71, END]
    assert re.fullmatch("(ab|ba){3}", usual.get_tokenizer().decode(token_ids[4:-1]))


def test_white_space_before_undecided_thoughts_is_no_part_of_the_form(usual: LLMEngine, finish) -> None:
    begun = {**PROMPT, "resume_token_ids": [SPACE, START, 70, END]}
    token_ids = answer(usual, finish, begun, reasoning=UNDECIDED)
    text = usual.get_tokenizer().decode(token_ids[4:-1])
    assert re.fullmatch(PATTERN, text), text


def test_white_space_that_the_grammar_excludes_comes_before_no_thoughts(usual: LLMEngine, finish) -> None:
    form = StructuredOutputsParams(regex="(ab|ba){3}")
    spaces = {"reasoning": UNDECIDED, "logit_bias": NEVER | {SPACE: 50.0}, "structured_outputs": form}
    assert len(answer(usual, finish, **spaces)) <= 7


def test_token_that_merges_white_space_with_the_form_follows_the_close(usual: LLMEngine, finish) -> None:
    """The mark is a token of its own, so that a token after it may have the white space and more."""
    tokenizer = usual.get_tokenizer()
    merged = next(
        token_id for token_id in range(258, 300) if re.fullmatch(" [a-z]+", tokenizer.decode([token_id]))
    )
    text = tokenizer.decode([merged])
    form = StructuredOutputsParams(regex=f"{text};")
    options = {
        "reasoning": INSIDE,
        "structured_outputs": form,
        "logit_bias": bias(END=100.0) | {merged: 50.0},
    }
    assert answer(usual, finish, **options)[:2] == [END, merged]


def test_reasoning_without_a_grammar_and_a_budget_changes_nothing(usual: LLMEngine, finish) -> None:
    free = {"structured_outputs": None, "logit_bias": {}, "max_tokens": 30}
    assert answer(usual, finish, reasoning=INSIDE, **free) == answer(usual, finish, **free)


def test_library_may_name_the_tokens_that_the_grammar_starts_after_beside_reasoning(
    usual: LLMEngine, finish
) -> None:
    form = StructuredOutputsParams(regex=PATTERN, starts_after=[80, 81])
    begun = {**PROMPT, "resume_token_ids": [70, END, 80, 81]}
    token_ids = answer(usual, finish, begun, reasoning=limited(INSIDE, 3), structured_outputs=form)
    assert re.fullmatch(PATTERN, usual.get_tokenizer().decode(token_ids[4:-1]))


SPELLED = Reasoning(
    start=[Mark("GH", [40, 41], exact=False)], end=[Mark("QR", [50, 51], exact=False)], inside=True, budget=4
)


def test_budget_ends_thoughts_that_are_a_part_of_the_grammar(usual: LLMEngine, finish) -> None:
    form = StructuredOutputsParams(
        grammar="start: thoughts form\nthoughts[lazy]: /(.|\\n)*QR/\nform: /(ab|ba){3}/"
    )
    token_ids = answer(usual, finish, reasoning=SPELLED, structured_outputs=form)
    text = usual.get_tokenizer().decode(token_ids[:-1])
    assert token_ids[4:6] == [50, 51]
    assert re.fullmatch("(.|\n)*QR(ab|ba){3}", text)


def test_answer_that_wants_to_end_in_thoughts_of_the_grammar_goes_on_with_the_form(
    usual: LLMEngine, finish
) -> None:
    thoughts = Reasoning(start=[Mark("GG", [START, START], exact=False)], end=MARKS["end"], inside=True)
    form = StructuredOutputsParams(regex=r"[A-PR-Z]*Q(ab|ba){3};")
    token_ids = answer(
        usual, finish, reasoning=thoughts, structured_outputs=form, logit_bias={EOS: 100.0}, temperature=0
    )
    assert (token_ids[0], len(token_ids), token_ids[-1]) == (END, 9, EOS)


def test_budget_forces_nothing_that_the_grammar_excludes(usual: LLMEngine, finish) -> None:
    """A grammar may be past the reasoning where the tokens seem to be within it."""
    form = StructuredOutputsParams(regex="(ab|ba){5}")
    token_ids = answer(usual, finish, reasoning=SPELLED, structured_outputs=form)
    assert re.fullmatch("(ab|ba){5}", usual.get_tokenizer().decode(token_ids[:-1]))


@pytest.mark.more
@pytest.mark.parametrize(("overlaps", "blocks"), tiered([(True, 120), (False, 14), (True, 14)], (True, 14)))
def test_tokens_are_the_same_overlapped_and_preempted(
    tiny_writer: Path, finish, plain, overlaps: bool, blocks: int
) -> None:
    engine = make(tiny_writer, overlapped=overlaps, blocks=blocks)
    assert answers(engine, finish) == plain
    engine.check_integrity()


@pytest.mark.parametrize("overlaps", tiered([False, True], True, more=[False]))
def test_tokens_are_the_same_with_drafts(tiny_writer: Path, finish, plain, overlaps: bool) -> None:
    engine = make(tiny_writer, overlapped=overlaps, speculative_config=NGRAM)
    draft_always(engine)
    assert answers(engine, finish) == plain


@pytest.mark.more
def test_drafts_across_the_border_are_verified(usual: LLMEngine, tiny_writer: Path, finish) -> None:
    """Drafts that copy thoughts, their end and the form from the prompt are accepted where the model writes them."""
    text = [70, 71, END, *usual.get_tokenizer().encode("ababab;")]
    prompt = {"prompt_token_ids": [60, *text, 60, *text, 60]}
    likely = {"logit_bias": NEVER | dict.fromkeys(text, 20.0), "reasoning": INSIDE}
    speculated = make(tiny_writer, speculative_config=NGRAM)
    draft_always(speculated)
    for seed in range(8):
        options = {**likely, "seed": seed}
        assert answer(speculated, finish, prompt, **options) == answer(usual, finish, prompt, **options)


@pytest.mark.parametrize(
    "name",
    tiered(CASES, "wants to end", "opens thoughts", more=["calls", "has a budget", "has other limits"]),
)
def test_request_resumed_at_any_token_gives_the_rest(overlapped: LLMEngine, finish, plain, name: str) -> None:
    whole, _ = plain[name][0]
    options = {**CASES[name], "n": 1}
    for count in range(1, len(whole)):
        overlapped.add_request(str(count), {**PROMPT, "resume_token_ids": whole[:count]}, params(**options))
    for output in finish(overlapped).values():
        assert output.outputs[0].token_ids == whole
