"""Steps that overlap: the next one is launched before the last one's tokens are known, and nobody can tell."""

from pathlib import Path

import pytest

from engine_server import EngineArgs, LLMEngine, RequestOutput, SamplingParams
from engine_server.core.heads.sampler import Launched
from engine_server.core.scheduling.scheduler import Sampled

WISHES = [
    {"temperature": 0},
    {"seed": 1, "top_p": 0.9, "logprobs": 3},
    {"seed": 2, "repetition_penalty": 1.5, "frequency_penalty": 0.5},
    {"temperature": 0, "min_tokens": 5, "stop_token_ids": list(range(2, 60))},
    {"seed": 3, "prompt_logprobs": 1},
    {"temperature": 0, "max_tokens": 1},
    {"seed": 4, "bad_words": None, "allowed_token_ids": list(range(70, 90)), "logit_bias": {80: 2.0}},
    {"seed": 5, "allowed_token_ids": [70, 71], "bad_words_token_ids": [[70, 70], [71, 71]]},  # they take turns
]  # fmt: skip


def make(model: Path, overlapped: bool, blocks: int) -> LLMEngine:
    return LLMEngine.from_engine_args(
        EngineArgs(
            model=str(model), dtype="float32", skip_tokenizer_init=True, max_model_len=64, max_num_seqs=8,
            num_gpu_blocks_override=blocks, max_num_batched_tokens=40, disable_log_stats=True,
            async_scheduling=overlapped,
        )
    )  # fmt: skip


def answers(engine: LLMEngine, finish) -> list[tuple[list[int], str | None, object, object]]:
    for number, wish in enumerate(WISHES):
        params = SamplingParams(**{"max_tokens": 30, "detokenize": False, **wish})
        engine.add_request(str(number), {"prompt_token_ids": list(range(3, 8 + 5 * number))}, params)
    outputs: dict[str, RequestOutput] = finish(engine)
    return [
        (one.outputs[0].token_ids, one.outputs[0].finish_reason, one.outputs[0].logprobs, one.prompt_logprobs)
        for one in (outputs[str(number)] for number in range(len(WISHES)))
    ]


@pytest.mark.parametrize("blocks", [80, 8])  # room for all, or for few, so that some are preempted
def test_both_loops_give_the_same(tiny_llama: Path, finish, blocks: int) -> None:
    plain, overlapped = (answers(make(tiny_llama, way, blocks), finish) for way in (False, True))
    assert [one[:2] for one in overlapped] == [one[:2] for one in plain]
    assert [[list(each) for each in one[2] or []] for one in overlapped] == [
        [list(each) for each in one[2] or []] for one in plain
    ]


def test_a_step_is_launched_before_the_last_one_is_finished(tiny_llama: Path) -> None:
    engine = make(tiny_llama, True, 80)
    engine.add_request(
        "r", {"prompt_token_ids": [5, 6]}, SamplingParams(max_tokens=3, ignore_eos=True, detokenize=False)
    )
    assert engine.step() == []  # its first token is on its way
    (request,) = engine._core.scheduler.requests.values()
    (first,) = engine.step()
    assert len(first.outputs[0].token_ids) == 1
    assert request.num_output == 2, "the second token was launched before the first was told"
    engine.abort_request("r")
    assert engine.step() == []
    assert not engine.has_unfinished_requests()
    assert engine._core.table.pool.usage == 0


def test_a_failed_step_leaves_a_namesake_alone(tiny_llama: Path, finish, monkeypatch) -> None:
    engine = make(tiny_llama, True, 80)
    params = SamplingParams(max_tokens=3, ignore_eos=True, detokenize=False)
    engine.add_request("r", {"prompt_token_ids": [5, 6]}, params)
    assert engine.step() == []  # its first token is on its way
    engine.abort_request("r")
    engine.add_request("r", {"prompt_token_ids": [7, 8, 9]}, params)

    def fail(launched: Launched) -> list[Sampled]:
        monkeypatch.undo()
        raise RuntimeError("lost")

    monkeypatch.setattr(Launched, "collect", fail)
    outputs = finish(engine)
    assert outputs["r"].outputs[0].finish_reason == "length"
    assert outputs["r"].prompt_token_ids == [7, 8, 9]
