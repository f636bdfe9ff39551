"""Admission and order of requests: queue limit, priorities, deadlines, and isolated failures."""

import time

import pytest
import torch
from prometheus_client import CollectorRegistry

from engine_server import EngineArgs, LLMEngine, QueueFullError
from engine_server.core.model_runner import ModelRunner
from engine_server.requests.errors import InvalidRequestError
from engine_server.telemetry.loggers import PrometheusStatLogger

PROMPT = [place % 90 + 5 for place in range(40)]


@pytest.fixture(scope="module")
def make(tiny_llama):
    def make(**options) -> LLMEngine:
        return LLMEngine.from_engine_args(
            EngineArgs(
                model=str(tiny_llama), dtype="float32", skip_tokenizer_init=True, num_gpu_blocks_override=40,
                enforce_eager=True, disable_log_stats=True, **options,
            )
        )  # fmt: skip

    return make


@pytest.fixture(scope="module")
def usual(make) -> LLMEngine:
    """An engine without settings of its own, for the tests that leave it empty."""
    return make()


def test_full_queue_refuses_a_request_and_counts_the_rejection(make, tiny_params, finish) -> None:
    engine = make(max_num_seqs=1, max_queue=2)
    registry = CollectorRegistry()
    engine.add_logger("mine", PrometheusStatLogger(engine.config, registry=registry))
    for number in range(3):
        engine.add_request(number, {"prompt_token_ids": PROMPT}, tiny_params(max_tokens=2))
    with pytest.raises(QueueFullError):
        engine.add_request("more", {"prompt_token_ids": PROMPT}, tiny_params())
    labels = {
        "model_name": engine.config.model_config.served_model_name[0],
        "reason": "queue_full",
    }
    assert registry.get_sample_value("vllm:admission_rejections_total", labels) == 1
    assert sorted(finish(engine)) == ["0", "1", "2"]
    engine.add_request("more", {"prompt_token_ids": PROMPT}, tiny_params(max_tokens=2))
    assert list(finish(engine)) == ["more"]


def test_full_queue_counts_each_completion_of_a_request(make, tiny_params, finish) -> None:
    engine = make(max_num_seqs=2, max_queue=3)
    engine.add_request("three", {"prompt_token_ids": PROMPT}, tiny_params(max_tokens=2, n=3, temperature=1))
    with pytest.raises(QueueFullError, match="3 completions are in flight"):
        engine.add_request("more", {"prompt_token_ids": PROMPT}, tiny_params(n=3, temperature=1))
    engine.add_request("two", {"prompt_token_ids": PROMPT}, tiny_params(max_tokens=2, n=2, temperature=1))
    assert sorted(finish(engine)) == ["three", "two"]


def test_more_completions_than_the_queue_ever_holds_are_refused_by_name(make, tiny_params) -> None:
    engine = make(max_num_seqs=2, max_queue=3)
    with pytest.raises(InvalidRequestError, match="takes 5 at a time") as refused:
        engine.add_request("many", {"prompt_token_ids": PROMPT}, tiny_params(n=6, temperature=1))
    assert refused.value.parameter == "n"


def test_request_with_the_lowest_priority_number_runs_first(make, tiny_params) -> None:
    engine = make(max_num_seqs=1, scheduling_policy="priority")
    for name, priority in (("running", 5), ("low", 9), ("later", 2), ("high", -1), ("latest", 2)):
        params = tiny_params(max_tokens=2, ignore_eos=True)
        engine.add_request(name, {"prompt_token_ids": PROMPT}, params, priority=priority)
        if name == "running":
            engine.step()
    order = []
    while engine.has_unfinished_requests():
        order += [output.request_id for output in engine.step() if output.finished]
    assert order == ["running", "high", "later", "latest", "low"]


def test_priority_is_refused_under_fcfs(usual: LLMEngine, tiny_params) -> None:
    with pytest.raises(InvalidRequestError, match="priority"):
        usual.add_request("x", {"prompt_token_ids": PROMPT}, tiny_params(), priority=1)


def test_deadline_ends_running_and_waiting_requests(make, tiny_params, monkeypatch) -> None:
    engine = make(max_num_seqs=1)
    params = tiny_params(timeout=1000.0, max_tokens=100, ignore_eos=True)
    for name in ("runs", "waits"):
        engine.add_request(name, {"prompt_token_ids": PROMPT}, params)
    engine.step()
    engine.add_request("late", {"prompt_token_ids": PROMPT}, params, arrival_time=-1000.0)
    [late, one] = engine.step()
    assert (one.request_id, one.finished) == ("runs", False)
    assert (late.request_id, late.outputs[0].finish_reason, late.outputs[0].token_ids) == (
        "late",
        "timeout",
        [],
    )
    clock = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: clock() + 1000.0)
    outputs = {output.request_id: output.outputs[0] for output in engine.step()}
    assert {name: output.finish_reason for name, output in outputs.items()} == {
        "runs": "timeout",
        "waits": "timeout",
    }
    assert len(outputs["runs"].token_ids) == 2
    assert engine.debug_state().scheduler.num_used_blocks == 0


@pytest.mark.parametrize("later", [1e9, 2.0**63])
def test_arrival_time_in_the_future_gives_no_negative_latency(
    usual: LLMEngine, tiny_params, finish, later: float
) -> None:
    usual.add_request("0", {"prompt_token_ids": PROMPT}, tiny_params(), arrival_time=time.monotonic() + later)
    assert finish(usual)["0"].metrics.first_token_latency >= 0


def test_request_with_nan_logits_fails_alone(make, tiny_params, finish) -> None:
    """Token 3 has a NaN embedding: its K and V are NaN, in blocks that other requests reuse."""
    engine = make(max_num_seqs=4)
    params = tiny_params(temperature=0, max_tokens=12, ignore_eos=True)
    embeddings = engine._core.executor.first.model.get_input_embeddings().weight

    def answers() -> dict[str, list[int]]:
        for number in range(3):
            engine.add_request(number, {"prompt_token_ids": PROMPT[number:]}, params)
        return {name: output.outputs[0].token_ids for name, output in finish(engine).items()}

    expected = answers()
    with torch.no_grad():
        embeddings[3] = torch.nan
    assert engine.reset_prefix_cache()
    engine.add_request("nan", {"prompt_token_ids": [3] * 37}, params)
    outputs = answers()
    assert outputs == {**expected, "nan": []}
    assert answers() == expected


def test_failed_step_ends_its_batch_and_caches_nothing(make, tiny_params, finish, monkeypatch) -> None:
    engine = make(max_num_seqs=2)
    params = tiny_params(temperature=0, max_tokens=3, ignore_eos=True)
    for name in ("one", "two", "waits"):
        engine.add_request(name, {"prompt_token_ids": PROMPT}, params)
    with monkeypatch.context() as patch:
        patch.setattr(ModelRunner, "forward", lambda self, inputs: 1 / 0)
        failed = {output.request_id: output.outputs[0] for output in engine.step()}
    assert {name: output.finish_reason for name, output in failed.items()} == {"one": "error", "two": "error"}
    assert failed["one"].stop_reason == "ZeroDivisionError: division by zero"
    assert finish(engine)["waits"].num_cached_tokens == 0
    engine.check_integrity()
    assert engine.debug_state().scheduler.num_used_blocks == 0
