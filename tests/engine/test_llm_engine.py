"""The synchronous engine, driven step by step."""

import gzip
import random
from pathlib import Path

import msgspec
import pytest
from fake_runner import FakeRunner

from engine_server import (
    EngineArgs,
    InvalidRequestError,
    LLMEngine,
    PromptAdapterRequest,
    RequestOutputKind,
    SamplingParams,
)
from engine_server.core.forward_output import ForwardOutput
from engine_server.core.model_inputs import ModelInputs
from engine_server.core.model_runner import ModelRunner
from engine_server.engine.front_end import FrontEnd


def assert_idle(engine: LLMEngine) -> None:
    """Fail if the core has a request, or a block in use."""
    state = engine.debug_state().scheduler
    assert (state.running, state.waiting) == ((), ())
    assert state.num_free_blocks == state.num_blocks


@pytest.fixture(scope="module")
def tiny(tiny_llama: Path) -> LLMEngine:
    return LLMEngine.from_engine_args(
        EngineArgs(
            model=str(tiny_llama), dtype="float32", skip_tokenizer_init=True, num_gpu_blocks_override=40,
            max_num_batched_tokens=64, max_num_seqs=16, disable_log_stats=True,
        )
    )  # fmt: skip


def test_example_of_the_api_specification_runs(engine: LLMEngine) -> None:
    example_inputs = [(0, "What is LLM?", SamplingParams(temperature=0.0))]
    finished = []
    while True:
        if example_inputs:
            request_id, prompt, sampling_params = example_inputs.pop(0)
            engine.add_request(str(request_id), prompt, sampling_params)
        finished += [output for output in engine.step() if output.finished]
        if not (engine.has_unfinished_requests() or example_inputs):
            break
    (output,) = finished
    assert output.request_id == "0" and output.prompt == "What is LLM?"
    assert len(output.outputs[0].token_ids) == 16 and output.outputs[0].finish_reason == "length"


def test_inputs_is_accepted_for_prompt_and_integers_for_ids(engine: LLMEngine, finish) -> None:
    engine.add_request(7, inputs="Hello", params=SamplingParams(max_tokens=1))
    assert list(finish(engine)) == ["7"]


def test_step_without_requests_returns_nothing(engine: LLMEngine) -> None:
    assert engine.step() == []


@pytest.mark.transformers
def test_generation_ends_at_the_end_of_sequence_unless_ignored(engine: LLMEngine, finish) -> None:
    messages = [{"role": "user", "content": "What is the capital of France? Answer in one short sentence."}]
    prompt = engine.get_tokenizer().apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    engine.add_request("ends", prompt, SamplingParams(temperature=0, max_tokens=12))
    engine.add_request("goes on", prompt, SamplingParams(temperature=0, max_tokens=12, ignore_eos=True))
    outputs = finish(engine)
    completion = outputs["ends"].outputs[0]
    assert "Paris" in completion.text and "<|im_end|>" not in completion.text
    assert (completion.finish_reason, completion.stop_reason) == ("stop", None)
    completion = outputs["goes on"].outputs[0]
    assert len(completion.token_ids) == 12 and completion.finish_reason == "length"


def test_generation_does_not_end_before_min_tokens(engine: LLMEngine, finish) -> None:
    text = "What is the capital of France?<|im_end|>\n<|im_start|>assistant\nThe capital of France is Paris."
    prompt = f"<|im_start|>user\n{text}"
    engine.add_request("free", prompt, SamplingParams(temperature=0, max_tokens=8))
    engine.add_request("longer", prompt, SamplingParams(temperature=0, max_tokens=8, min_tokens=6))
    outputs = finish(engine)
    assert outputs["free"].outputs[0].finish_reason == "stop"
    assert len(outputs["free"].outputs[0].token_ids) < 6 <= len(outputs["longer"].outputs[0].token_ids)


@pytest.mark.transformers
def test_output_kinds_hold_the_same_text_and_tokens(engine: LLMEngine, finish) -> None:
    def params(kind: RequestOutputKind) -> SamplingParams:
        return SamplingParams(temperature=0.8, seed=11, max_tokens=12, logprobs=1, output_kind=kind)

    for kind in RequestOutputKind:
        engine.add_request(kind.name, "The sea is", params(kind))
    seen: dict[str, list] = {kind.name: [] for kind in RequestOutputKind}
    while engine.has_unfinished_requests():
        for output in engine.step():
            seen[output.request_id].append(output.outputs[0])
    whole = seen["CUMULATIVE"][-1]
    (final,) = seen["FINAL_ONLY"]
    assert (final.text, final.token_ids) == (whole.text, whole.token_ids)
    assert "".join(one.text for one in seen["DELTA"]) == whole.text
    assert [token for one in seen["DELTA"] for token in one.token_ids] == whole.token_ids
    assert [next(iter(one)) for delta in seen["DELTA"] for one in delta.logprobs] == whole.token_ids
    assert len(whole.logprobs) == 12 and whole.logprobs[0][whole.token_ids[0]].decoded_token


def test_generation_ends_at_stop_strings_and_stop_tokens(engine: LLMEngine, finish) -> None:
    engine.add_request("text", "1, 2, 3, 4,", SamplingParams(temperature=0, max_tokens=30, stop=["7"]))
    by_text = finish(engine)["text"].outputs[0]
    assert by_text.text == " 5, 6, " and (by_text.finish_reason, by_text.stop_reason) == ("stop", "7")
    comma = engine.get_tokenizer().encode(",")[0]
    engine.add_request(
        "token", "1, 2, 3, 4,", SamplingParams(temperature=0, max_tokens=30, stop_token_ids=[comma])
    )
    by_token = finish(engine)["token"].outputs[0]
    assert by_token.text == " 5" and (by_token.finish_reason, by_token.stop_reason) == ("stop", comma)


def test_seeded_output_is_repeatable_and_independent_of_batch_composition(engine: LLMEngine, finish) -> None:
    params = SamplingParams(temperature=1.0, top_p=0.95, top_k=40, seed=3, max_tokens=10)
    engine.add_request("alone", "Once upon a time", params)
    alone = finish(engine)["alone"].outputs[0].token_ids
    engine.add_request("again", "Once upon a time", params)
    for number in range(6):
        engine.add_request(
            f"neighbour {number}", "word " * (4 * number + 1), SamplingParams(max_tokens=2 + number)
        )
    assert finish(engine)["again"].outputs[0].token_ids == alone
    engine.add_request("other", "Once upon a time", SamplingParams(temperature=1.0, seed=4, max_tokens=10))
    assert finish(engine)["other"].outputs[0].token_ids != alone


def test_max_tokens_none_generates_to_the_end_of_the_context(tiny: LLMEngine, finish, tiny_params) -> None:
    tiny.add_request("long", {"prompt_token_ids": [5] * 200}, tiny_params(max_tokens=None, ignore_eos=True))
    assert len(finish(tiny)["long"].outputs[0].token_ids) == 56


def test_abort_frees_blocks_immediately_and_returns_no_output(tiny: LLMEngine, finish, tiny_params) -> None:
    for name in ("stays", "goes", "waits"):
        tiny.add_request(name, {"prompt_token_ids": [5] * 40}, tiny_params(max_tokens=20, ignore_eos=True))
    tiny.step()
    tiny.abort_request(["goes", "waits", "unknown"])
    seen = finish(tiny)
    assert list(seen) == ["stays"]
    assert_idle(tiny)


@pytest.mark.more
def test_random_requests_and_aborts_free_every_block(tiny: LLMEngine, tiny_params) -> None:
    """After random arrivals, lengths and aborts all requests end, and every block is free."""
    settings = msgspec.structs.asdict(tiny.config)
    engine = LLMEngine(**settings, executor_class=FakeRunner, log_stats=False)
    choose = random.Random(0)
    waiting = [str(number) for number in range(200)]
    finished, aborted = set(), set()
    while waiting or engine.has_unfinished_requests():
        for _ in range(min(len(waiting), choose.randrange(6))):
            prompt = [choose.randrange(2, 128) for _ in range(choose.randrange(1, 150))]
            params = tiny_params(max_tokens=choose.randrange(1, 60), ignore_eos=choose.random() < 0.5)
            engine.add_request(waiting.pop(), {"prompt_token_ids": prompt}, params)
        finished |= {output.request_id for output in engine.step() if output.finished}
        if choose.random() < 0.2:
            goes = choose.choice([str(number) for number in range(200)])
            if goes not in waiting and goes not in finished:
                aborted.add(goes)
            engine.abort_request(goes)
    assert finished | aborted == {str(number) for number in range(200)}
    assert not finished & aborted
    assert_idle(engine)


@pytest.mark.parametrize(
    ("options", "named", "words"),
    [
        ({"temperature": -1}, "temperature", "-1.* >= 0"),
        ({"temperature": "hot"}, "temperature", "expected `float`"),
        ({"temperature": float("nan")}, "temperature", "nan"),
        ({"top_p": 0}, "top_p", "> 0"),
        ({"top_k": 1.5}, "top_k", "expected `int`"),
        ({"min_p": 2}, "min_p", "<= 1"),
        ({"max_tokens": 0}, "max_tokens", ">= 1"),
        ({"n": 0}, "n", ">= 1"),
        ({"n": True}, "n", "got `bool`"),
        ({"n": 3, "best_of": 2}, "best_of", "n is 3"),
        ({"best_of": 2, "temperature": 0}, "best_of", "greedy"),
        ({"stop": [""]}, "stop", "length >= 1"),
        ({"stop_token_ids": ["x"]}, "stop_token_ids", "expected `int`"),
        ({"logprobs": -2}, "logprobs", ">= -1"),
        ({"prompt_logprobs": -2}, "prompt_logprobs", ">= -1"),
        ({"min_tokens": 20, "max_tokens": 10}, "min_tokens", "max_tokens"),
        ({"presence_penalty": 2.5}, "presence_penalty", "<= 2"),
        ({"repetition_penalty": 0}, "repetition_penalty", "> 0"),
        ({"logit_bias": {3: 101}}, "logit_bias", "<= 100"),
        ({"logit_bias": {"3": 1}}, "logit_bias", "expected `int`"),
        ({"allowed_token_ids": []}, "allowed_token_ids", "length >= 1"),
        ({"bad_words": [""]}, "bad_words", "length >= 1"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "-1"),
        ({"spaces_between_special_tokens": False}, "spaces_between_special_tokens", "True"),
        ({"seed": 1 << 64}, "seed", "64 bits"),
        ({"timeout": 0}, "timeout", "> 0"),
        ({"stop": "x", "detokenize": False}, "stop", "detokenize"),
    ],
)
def test_invalid_sampling_parameters_are_refused_by_name(options: dict, named: str, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words) as caught:
        SamplingParams(**options)
    assert caught.value.parameter == named


def test_invalid_requests_queue_nothing(tiny: LLMEngine, engine: LLMEngine, finish, tiny_params) -> None:
    def refused(prompt, words: str, **options) -> None:
        with pytest.raises(InvalidRequestError, match=words):
            tiny.add_request("bad", prompt, tiny_params(), **options)

    refused({"prompt_token_ids": []}, "empty")
    refused({"prompt_token_ids": [3] * 256}, "256 tokens.* 256")
    refused({"prompt_token_ids": [128]}, "token 128; tokens are integers from 0 to 127")
    refused("text", "no tokenizer")
    refused({"text": "x"}, "neither")
    refused(None, "no prompt")
    refused({"prompt_token_ids": [3]}, "lora_request is given.* without enable_lora", lora_request="adapter")
    with pytest.raises(InvalidRequestError, match="empty"):
        engine.add_request("bad", "", SamplingParams())
    tiny.add_request("twice", {"prompt_token_ids": [3]}, tiny_params(max_tokens=2))
    with pytest.raises(InvalidRequestError, match="'twice' is in flight"):
        tiny.add_request("twice", {"prompt_token_ids": [3]}, tiny_params())
    assert list(finish(tiny)) == ["twice"]


def test_profile_is_written_to_its_folder(tiny_llama: Path, finish, tiny_params, tmp_path: Path) -> None:
    arguments = EngineArgs(
        model=str(tiny_llama), skip_tokenizer_init=True, num_gpu_blocks_override=16, torch_profiler_dir=str(tmp_path),
        enforce_eager=True,
    )  # fmt: skip
    profiled = LLMEngine.from_engine_args(arguments)
    profiled.start_profile()
    with pytest.raises(RuntimeError, match="already"):
        profiled.start_profile()
    profiled.add_request("traced", {"prompt_token_ids": [5] * 8}, tiny_params(max_tokens=2))
    finish(profiled)
    profiled.stop_profile()
    (trace,) = tmp_path.glob("*.pt.trace.json.gz")
    assert b"aten::embedding" in gzip.decompress(trace.read_bytes())
    with pytest.raises(RuntimeError, match="no profile"):
        profiled.stop_profile()


def test_step_checks_output_types_when_validation_is_on(tiny: LLMEngine, tiny_params, monkeypatch) -> None:
    monkeypatch.setattr(LLMEngine, "DO_VALIDATE_OUTPUT", True)
    tiny.add_request("right", {"prompt_token_ids": [5]}, tiny_params(max_tokens=2, ignore_eos=True))
    assert tiny.step()
    monkeypatch.setattr(FrontEnd, "process", lambda self, steps, stats: (["wrong"], []))
    with pytest.raises(TypeError, match="an output is a str"):
        tiny.step()
    monkeypatch.undo()
    tiny.abort_request("right")


class CountingRunner(ModelRunner):
    steps = 0

    def forward(self, inputs: ModelInputs) -> ForwardOutput:
        type(self).steps += 1
        return super().forward(inputs)

    def num_steps(self, scale: int) -> int:
        return scale * self.steps

    def broken(self) -> float:
        return 1 / 0


def test_engine_runs_a_given_executor_class(tiny: LLMEngine, finish, tiny_params) -> None:
    settings = msgspec.structs.asdict(tiny.config)
    own = LLMEngine(**settings, executor_class=CountingRunner, log_stats=False)
    own.add_request("counted", {"prompt_token_ids": [5]}, tiny_params(max_tokens=3, ignore_eos=True))
    finish(own)
    assert CountingRunner.steps == 3
    assert own.collective_rpc("num_steps", kwargs={"scale": 2}) == [6]
    for method, words in (
        ("num_steps_of", r"rank 0: AttributeError: .*num_steps_of"),
        ("_probe", "rank 0: ValueError: _probe is not a public method"),
        ("broken", "rank 0: ZeroDivisionError"),
    ):
        with pytest.raises(RuntimeError, match=words):
            own.collective_rpc(method)


def test_methods_of_vllm_exist(tiny: LLMEngine, finish, tiny_params) -> None:
    assert not tiny.has_unfinished_requests_for_virtual_engine(0)
    with pytest.raises(IndexError, match="only 0"):
        tiny.has_unfinished_requests_for_virtual_engine(1)
    assert tiny.get_parallel_config().tensor_parallel_size == 1
    assert tiny.get_scheduler_config().max_num_seqs == 16 and tiny.get_lora_config() is None
    tiny.do_log_stats()
    tiny.check_health()
    with pytest.raises(ValueError, match="skip is not supported"):
        tiny.do_log_stats(skip=[1])
    settings = msgspec.structs.asdict(tiny.config) | {"executor_class": None, "log_stats": False}
    with pytest.raises(ValueError, match="use_cached_outputs"):
        LLMEngine(**settings | {"use_cached_outputs": True})
    adapter = PromptAdapterRequest("sql", 1, "/adapters/sql", 8)
    with pytest.raises(InvalidRequestError, match="the engine was started without enable_prompt_adapter"):
        tiny.add_request("adapted", {"prompt_token_ids": [3]}, tiny_params(), prompt_adapter_request=adapter)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dtype": "int4"}, "dtype is 'int4': expected one of auto, bfloat16"),
        ({"max_num_seqs": 0}, "max_num_seqs is 0: Expected `int` >= 1"),
        ({"max_num_seqs": "8"}, "max_num_seqs is '8'"),
        ({"block_size": True}, "block_size is True"),
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization is 1.5"),
        (
            {"kv_cache_dtype": "fp8_e5m2"},
            "kv_cache_dtype is 'fp8_e5m2': expected one of auto, fp8, fp8_e4m3, int8",
        ),
        ({"hang_timeout": 0}, "hang_timeout is 0"),
        ({"tensor_parallel_size": 0}, "tensor_parallel_size is 0"),
    ],
)
def test_invalid_engine_arguments_are_refused_by_name(options: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        EngineArgs(model="/nowhere", **options).create_engine_config()


def test_sleep_frees_memory_and_empties_the_prefix_cache(tiny: LLMEngine, finish, tiny_params) -> None:
    prompt = {"prompt_token_ids": [9] * 40}
    tiny.add_request("before", prompt, tiny_params(temperature=0, max_tokens=4))
    before = finish(tiny)["before"].outputs[0].token_ids
    runner = tiny._core.executor.first
    tiny.sleep(level=2)
    assert tiny.is_sleeping() and not runner.loaded.is_loaded
    assert sum(cache.untyped_storage().nbytes() for cache in runner.backend.caches) == 0
    tiny.add_request("after", prompt, tiny_params(temperature=0, max_tokens=4))
    assert tiny.step() == [] and tiny.has_unfinished_requests()
    tiny.wake_up()
    assert not tiny.is_sleeping()
    after = finish(tiny)["after"]
    assert after.outputs[0].token_ids == before and after.num_cached_tokens == 0
