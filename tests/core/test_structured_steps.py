"""Grammars under every order of steps: overlapped, preempted, resumed."""

import re
from pathlib import Path

import pytest
from tiers import tiered

from engine_server import EngineArgs, LLMEngine, RequestOutput, SamplingParams, StructuredOutputsParams

PATTERN = r"(ab|ba|c[0-9]{2}){9,12};"
OPTIONS = [
    {"seed": 1},
    {"seed": 2, "n": 3},
    {"seed": 3, "min_tokens": 15, "repetition_penalty": 1.3},
    {"temperature": 0},
    {"seed": 4, "logprobs": 2, "stop": ["abba"]},
    {"seed": 5, "structured_outputs": None},
    {"seed": 6, "max_tokens": 7},
]


def make(model: Path, overlapped: bool, blocks: int) -> LLMEngine:
    return LLMEngine.from_engine_args(
        EngineArgs(
            model=str(model), dtype="float32", max_model_len=96, max_num_seqs=8, num_gpu_blocks_override=blocks,
            max_num_batched_tokens=40, disable_log_stats=True, async_scheduling=overlapped,
        )
    )  # fmt: skip


def params(**options) -> SamplingParams:
    grammar = StructuredOutputsParams(regex=PATTERN)
    return SamplingParams(**{"max_tokens": 64, "structured_outputs": grammar, **options})


def answers(engine: LLMEngine, finish) -> list[list[tuple[list[int], str, str | None]]]:
    for number, options in enumerate(OPTIONS):
        prompt = {"prompt_token_ids": list(range(40, 48 + 3 * number))}
        engine.add_request(str(number), prompt, params(**options))
    outputs: dict[str, RequestOutput] = finish(engine)
    return [
        [(one.token_ids, one.text, one.finish_reason) for one in outputs[str(number)].outputs]
        for number in range(len(OPTIONS))
    ]


@pytest.fixture(scope="module")
def plain(tiny_writer: Path, finish) -> list[list[tuple[list[int], str, str | None]]]:
    return answers(make(tiny_writer, False, 80), finish)


def test_complete_outputs_match_the_grammar(plain) -> None:
    for number in (0, 1, 2, 3):
        assert all(re.fullmatch(PATTERN, text) for _, text, reason in plain[number] if reason == "stop")
    assert {reason for number in (0, 1) for _, _, reason in plain[number]} == {"stop"}


@pytest.mark.more
@pytest.mark.parametrize(("overlapped", "blocks"), tiered([(True, 80), (False, 12), (True, 12)], (True, 12)))
def test_tokens_are_the_same_overlapped_and_preempted(
    tiny_writer: Path, finish, plain, overlapped: bool, blocks: int
) -> None:
    engine = make(tiny_writer, overlapped, blocks)
    assert answers(engine, finish) == plain
    engine.check_integrity()


@pytest.mark.more
@pytest.mark.parametrize("overlapped", tiered([False, True], True))
def test_request_resumed_at_any_token_gives_the_rest(tiny_writer: Path, finish, overlapped: bool) -> None:
    engine = make(tiny_writer, overlapped, 80)
    prompt = {"prompt_token_ids": list(range(40, 50))}
    options = {
        "seed": 9,
        "structured_outputs": StructuredOutputsParams(regex=PATTERN, starts_after=[50, 51]),
        "logit_bias": {50: 9.0, 51: 9.0},
        "max_tokens": 70,
    }
    engine.add_request("whole", prompt, params(**options))
    whole = finish(engine)["whole"].outputs[0]
    assert whole.finish_reason == "stop"
    for count in range(1, len(whole.token_ids)):
        engine.add_request(
            str(count), {**prompt, "resume_token_ids": whole.token_ids[:count]}, params(**options)
        )
    for output in finish(engine).values():
        assert (output.outputs[0].token_ids, output.outputs[0].text) == (whole.token_ids, whole.text)


def test_resumed_tokens_that_do_not_match_fail_their_request_alone(tiny_writer: Path, finish) -> None:
    engine = make(tiny_writer, True, 80)
    prompt = {"prompt_token_ids": list(range(40, 50)), "resume_token_ids": [250, 251]}
    engine.add_request("wrong", prompt, params(seed=1))
    engine.add_request("right", {"prompt_token_ids": [40, 41]}, params(seed=1))
    outputs = finish(engine)
    assert outputs["wrong"].outputs[0].finish_reason == "error"
    assert outputs["right"].outputs[0].finish_reason == "stop"


def test_request_aborted_while_its_grammar_is_compiled_leaves_nothing(tiny_writer: Path, finish) -> None:
    engine = make(tiny_writer, True, 80)
    engine.add_request("r", {"prompt_token_ids": [40, 41]}, params(seed=1))
    engine.abort_request("r")
    assert finish(engine) == {}
    engine.check_integrity()
    assert engine.debug_state().scheduler.num_used_blocks == 0


def test_request_waits_for_its_grammar_while_others_run(tiny_writer: Path, finish, monkeypatch) -> None:
    from engine_server.structured.matcher import Matcher

    engine = make(tiny_writer, False, 80)
    compiled = False
    monkeypatch.setattr(Matcher, "ready", property(lambda self: compiled))
    engine.add_request("constrained", {"prompt_token_ids": [40, 41]}, params(seed=1))
    engine.add_request(
        "free", {"prompt_token_ids": [40, 41]}, params(seed=1, structured_outputs=None, max_tokens=4)
    )
    while engine.get_num_unfinished_requests() == 2:
        engine.step()
    assert engine.debug_state().scheduler.waiting
    compiled = True
    assert finish(engine)["constrained"].outputs[0].finish_reason == "stop"
