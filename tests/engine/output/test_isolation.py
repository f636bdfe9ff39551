"""Isolation of requests: an error while one request's output is processed ends that request alone."""

import logging
from collections.abc import Callable
from typing import Any

import pytest

from engine_server import LLMEngine, RequestOutputKind, SamplingParams, StatLoggerBase
from engine_server.engine.output.logprobs import LogprobsConverter
from engine_server.engine.output.request_state import GenerationState
from engine_server.engine.output.stop_matcher import StopMatcher
from engine_server.engine.output.token_decoder import TokenDecoder
from engine_server.telemetry.engine_loggers import EngineLoggers

COMMON = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}


def fails_after(calls: int, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return `method`, changed to raise after `calls` calls."""
    count = 0

    def failing(*arguments: Any) -> Any:
        nonlocal count
        count += 1
        if count > calls:
            raise RuntimeError("broken on purpose")
        return method(*arguments)

    return failing


@pytest.mark.parametrize(
    ("owner", "method", "options", "other"),
    [
        (TokenDecoder, "decode", {}, {"detokenize": False}),
        (StopMatcher, "find", {"stop": ["never there"]}, {}),
        (LogprobsConverter, "convert", {"logprobs": 2}, {}),
        (GenerationState, "add_prompt_logprobs", {"prompt_logprobs": 1}, {}),
        (GenerationState, "_delta", {"output_kind": RequestOutputKind.DELTA}, {}),
    ],
    ids=["detokenizing", "stop matching", "logprobs", "prompt logprobs", "output"],
)
@pytest.mark.parametrize("n", [1, 2])
def test_error_in_output_processing_ends_its_request_alone(
    writer: LLMEngine,
    finish: Callable[[LLMEngine], dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    method: str,
    options: dict[str, Any],
    other: dict[str, Any],
    n: int,
) -> None:
    calls = 0 if method == "add_prompt_logprobs" else 3
    monkeypatch.setattr(owner, method, fails_after(calls, getattr(owner, method)))
    sampled = COMMON | {"temperature": 1.0, "n": n}
    writer.add_request("fails", "some text", SamplingParams(**sampled | options))
    writer.add_request("lives", "some text", SamplingParams(**COMMON | other))
    outputs = finish(writer)
    failed = outputs["fails"]
    assert failed.finished and len(failed.outputs) == n
    assert [one.finish_reason for one in failed.outputs] == ["error"] * n
    assert failed.outputs[0].stop_reason == "RuntimeError: broken on purpose"
    assert outputs["lives"].outputs[0].finish_reason == "length"
    assert len(outputs["lives"].outputs[0].token_ids) == 8
    monkeypatch.undo()
    assert writer.step() == []
    writer.add_request("fails", "some text", SamplingParams(**COMMON | options))
    assert finish(writer)["fails"].outputs[0].finish_reason == "length"


class Recorder(StatLoggerBase):
    def __init__(self, broken: bool) -> None:
        self.broken = broken
        self.num_records = 0

    def record(self, scheduler_stats: Any, iteration_stats: Any) -> None:
        self.num_records += 1
        if self.broken:
            raise RuntimeError("broken on purpose")

    def log_engine_initialized(self) -> None:
        pass


def test_stat_logger_that_raises_affects_no_request_and_no_other_logger(
    writer: LLMEngine, finish: Callable[[LLMEngine], dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    broken, sound = Recorder(broken=True), Recorder(broken=False)
    writer.add_logger("broken", broken)
    writer.add_logger("sound", sound)
    with caplog.at_level(logging.ERROR):
        writer.add_request("observed", "some text", SamplingParams(**COMMON))
        output = finish(writer)["observed"].outputs[0]
    writer.remove_logger("broken")
    writer.remove_logger("sound")
    assert output.finish_reason == "length"
    assert broken.num_records == sound.num_records == 8
    assert [record.getMessage() for record in caplog.records] == ["stat logger 'broken' failed"]


def test_stat_logger_that_cannot_start_affects_no_other_logger(caplog: pytest.LogCaptureFixture) -> None:
    class Unable(Recorder):
        def log_engine_initialized(self) -> None:
            raise RuntimeError("broken on purpose")

    with caplog.at_level(logging.ERROR):
        EngineLoggers({"unable": Unable(broken=False)}).initialize()
    assert caplog.messages == ["stat logger 'unable' failed"]
