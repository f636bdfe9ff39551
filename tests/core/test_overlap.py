"""Overlapped steps: each is launched before the previous one's results are known, and gives the same results."""

import itertools
from pathlib import Path

import pytest
import scheduling
from sampling import COUNTED
from tiers import tiered

from engine_server import EngineArgs, LLMEngine, RequestOutput, SamplingParams
from engine_server.core.forward_output import ForwardOutput
from engine_server.core.model_inputs import ModelInputs
from engine_server.core.model_runner import ModelRunner
from engine_server.core.sampling.sampler import PendingTokens
from engine_server.core.scheduling.scheduler import Scheduler
from engine_server.core.scheduling.step_result import StepResult
from engine_server.modeling.platform.cpu import CpuPlatform

OPTIONS = [
    {"temperature": 0},
    {"seed": 1, "top_p": 0.9, "logprobs": 3},
    {"seed": 2, "repetition_penalty": 1.5, "frequency_penalty": 0.5},
    {"temperature": 0, "min_tokens": 5, "stop_token_ids": list(range(2, 60))},
    {"seed": 3, "prompt_logprobs": 1},
    {"temperature": 0, "max_tokens": 1},
    {"seed": 4, "bad_words": None, "allowed_token_ids": list(range(70, 90)), "logit_bias": {80: 2.0}},
    {"seed": 5, "allowed_token_ids": [70, 71], "bad_words_token_ids": [[70, 70], [71, 71]]},  # the two tokens alternate
]  # fmt: skip


def make(model: Path, overlapped: bool, blocks: int, **options) -> LLMEngine:
    return LLMEngine.from_engine_args(
        EngineArgs(
            model=str(model), dtype="float32", skip_tokenizer_init=True, max_model_len=64, max_num_seqs=8,
            num_gpu_blocks_override=blocks, max_num_batched_tokens=40, disable_log_stats=True,
            async_scheduling=overlapped, **options,
        )
    )  # fmt: skip


def answers(engine: LLMEngine, finish) -> list[tuple[list[int], str | None, object, object]]:
    for number, options in enumerate(OPTIONS):
        params = SamplingParams(**{"max_tokens": 30, "detokenize": False, **options})
        engine.add_request(str(number), {"prompt_token_ids": list(range(3, 8 + 5 * number))}, params)
    outputs: dict[str, RequestOutput] = finish(engine)
    return [
        (one.outputs[0].token_ids, one.outputs[0].finish_reason, one.outputs[0].logprobs, one.prompt_logprobs)
        for one in (outputs[str(number)] for number in range(len(OPTIONS)))
    ]


# Enough blocks for all requests, or so few that some are preempted.
@pytest.mark.parametrize("blocks", tiered([80, 8], 8, more=[80]))
def test_overlapped_loop_gives_the_results_of_the_plain_loop(tiny_llama: Path, finish, blocks: int) -> None:
    plain, overlapped = (answers(make(tiny_llama, way, blocks), finish) for way in (False, True))
    assert [one[:2] for one in overlapped] == [one[:2] for one in plain]
    assert [[list(each) for each in one[2] or []] for one in overlapped] == [
        [list(each) for each in one[2] or []] for one in plain
    ]


@pytest.mark.parametrize("overlapped", [False, True])
def test_durations_are_those_of_the_steps_whose_results_they_bring(
    tiny_llama: Path, overlapped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts: list[int] = []
    monkeypatch.setattr(
        Scheduler, "observe", lambda self, batch, seconds: starts.extend(one.start for one in batch)
    )
    engine = make(tiny_llama, overlapped, 80)
    params = SamplingParams(max_tokens=3, ignore_eos=True, detokenize=False)
    engine.add_request("r", {"prompt_token_ids": [5, 6]}, params)
    collected = [(len(engine.step()), list(starts)) for _ in range(2)]
    if overlapped:
        assert collected == [(0, []), (1, [0])]
    else:
        assert collected == [(1, [0]), (1, [0, 2])]


def test_next_step_is_launched_before_the_results_of_the_last_are_collected(tiny_llama: Path) -> None:
    engine = make(tiny_llama, True, 80)
    params = SamplingParams(max_tokens=3, ignore_eos=True, detokenize=False)
    engine.add_request("r", {"prompt_token_ids": [5, 6]}, params)
    assert engine.step() == []
    assert engine.debug_state().in_flight
    [first] = engine.step()
    assert len(first.outputs[0].token_ids) == 1
    [request] = engine.debug_state().requests
    assert request.num_output == 2, (
        "the second token's step was launched before the first token was delivered"
    )
    engine.abort_request("r")
    assert engine.step() == []
    assert not engine.has_unfinished_requests()
    assert engine.debug_state().scheduler.num_used_blocks == 0


def test_forward_of_a_request_with_a_logits_processor_overlaps_and_its_sampling_waits(
    tiny_llama: Path, finish, monkeypatch
) -> None:
    """The processor must get every earlier token, although the next forward is launched before they are known."""
    engine = make(tiny_llama, True, 80, logits_processors=["sampling:count_tokens"])
    params = SamplingParams(
        max_tokens=6, ignore_eos=True, detokenize=False, logits_processors=["sampling:count_tokens"]
    )
    calls: list[str] = []
    forward, collect = ModelRunner.forward, PendingTokens.collect
    monkeypatch.setattr(
        ModelRunner, "forward", lambda self, inputs: (calls.append("forward"), forward(self, inputs))[1]
    )
    monkeypatch.setattr(PendingTokens, "collect", lambda self: (calls.append("collect"), collect(self))[1])
    COUNTED.clear()
    engine.add_request("r", {"prompt_token_ids": [5, 6]}, params)
    tokens = finish(engine)["r"].outputs[0].token_ids
    assert [len(token_ids) for token_ids in COUNTED] == [2, 3, 4, 5, 6, 7]
    assert COUNTED[-1] == [5, 6, *tokens[:-1]]
    assert calls[:3] == ["forward", "forward", "collect"]


def test_failed_step_does_not_end_a_later_request_of_the_same_id(
    tiny_llama: Path, finish, monkeypatch
) -> None:
    engine = make(tiny_llama, True, 80)
    params = SamplingParams(max_tokens=3, ignore_eos=True, detokenize=False)
    engine.add_request("r", {"prompt_token_ids": [5, 6]}, params)
    assert engine.step() == []
    engine.abort_request("r")
    engine.add_request("r", {"prompt_token_ids": [7, 8, 9]}, params)

    def fail(pending: PendingTokens) -> list[StepResult]:
        monkeypatch.undo()
        raise RuntimeError("lost")

    monkeypatch.setattr(PendingTokens, "collect", fail)
    outputs = finish(engine)
    assert outputs["r"].outputs[0].finish_reason == "length"
    assert outputs["r"].prompt_token_ids == [7, 8, 9]


def test_result_of_an_aborted_request_is_not_that_of_a_later_one_of_the_same_id() -> None:
    scheduler = scheduling.make(num_blocks=10, budget=8, seats=2)
    scheduler.add(scheduling.request("r", 3, 5))
    batch = scheduler.schedule()
    scheduler.abort(["r"])
    scheduler.add(scheduling.request("r", 3, 5))

    assert scheduler.update(batch, [StepResult([7])]) == []

    assert scheduler.debug_state().waiting == ("r",)


class Mark:
    """A mark in a scripted device's work: the n-th step, from 0, takes n + 1 seconds."""

    def __init__(self, number: int) -> None:
        self.step = number // 2

    def synchronize(self) -> None: ...

    def elapsed_time(self, end: "Mark") -> float:
        assert end.step == self.step
        return 1e3 * (self.step + 1)


def test_each_step_is_reported_with_its_own_tokens_capture_and_device_time(
    tiny_llama: Path, monkeypatch
) -> None:
    """Once, when it is collected, although the next one was launched before: 40 + 10 tokens of a prompt, then 1."""
    numbers = itertools.count()
    monkeypatch.setattr(
        CpuPlatform, "record_event", lambda self, timed=False: Mark(next(numbers)) if timed else None
    )
    engine = make(tiny_llama, True, 80)
    core = engine._core
    launched: list[bool] = []
    forward = core.executor.first.forward

    def launch(inputs: ModelInputs) -> ForwardOutput:
        output = forward(inputs)
        launched.append(output.replay is not None)
        return output

    monkeypatch.setattr(core.executor.first, "forward", launch)
    numbers = itertools.count()
    params = SamplingParams(max_tokens=2, ignore_eos=True, detokenize=False)
    engine.add_request("r", {"prompt_token_ids": list(range(3, 53))}, params)
    turns = []
    while core.has_work or not turns:
        turns.append(core.outputs().stats)
    assert [one.num_tokens for one in turns] == [0, 40, 10, 1]
    assert [(one.device_seconds, one.replayed) for one in turns[1:]] == list(
        zip([1, 2, 3], launched, strict=True)
    )
    assert all(one.step_seconds > 0 for one in turns)
    assert not core.outputs().stats.step_seconds
