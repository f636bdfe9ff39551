"""Adapters in an engine whose runner is a fake: which are in memory, and which requests they serve.

The tokens of a request depend on its adapter's content and on all tokens before them.
"""

import shutil
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from adapter_folders import write
from fake_runner import FakeRunner
from msgspec.structs import asdict

from engine_server import EngineArgs, InvalidRequestError, LLMEngine, LoRARequest, SamplingParams

PROMPT = [3, 4, 5, 6]
NEW_TOKENS = 6
KEY = "base_model.model.model.layers.0.self_attn.q_proj.lora_{}.weight"


@pytest.fixture(autouse=True)
def fair_interpreter() -> Iterator[None]:
    """Give the thread that reads adapters its turns between steps that take next to no time."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(before)


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> list[LoRARequest]:
    """A dozen adapters with different contents, whose numbers are 1 to 12."""
    return [
        LoRARequest(str(number), number, str(save(tmp_path_factory.mktemp("adapter"), number)))
        for number in range(1, 13)
    ]


def save(folder: Path, number: int) -> Path:
    tensors = {KEY.format("A"): torch.full((2, 6), float(number)), KEY.format("B"): torch.ones(8, 2)}
    return write(folder, {"peft_type": "LORA", "r": 2, "lora_alpha": 4}, tensors)


@pytest.fixture
def start(tiny_llama: Path) -> Any:
    """Return a function that starts an engine, by default with two adapters in use and three in memory."""

    def start(**options: Any) -> LLMEngine:
        usual = {"max_loras": 2, "max_cpu_loras": 3, "max_num_batched_tokens": 16, "max_num_seqs": 8}
        args = EngineArgs(
            model=str(tiny_llama), skip_tokenizer_init=True, num_gpu_blocks_override=64, enable_lora=True,
            **usual | options,
        )  # fmt: skip
        return LLMEngine(**asdict(args.create_engine_config()), executor_class=FakeRunner, log_stats=False)

    return start


@pytest.fixture
def alone(start, finish) -> Any:
    """Return a function that computes the tokens of a request with an adapter in an engine that has no other."""
    engine = start(enable_prefix_caching=False)

    def alone(lora: LoRARequest | None) -> list[int]:
        engine.add_request("alone", {"prompt_token_ids": PROMPT}, params(), lora_request=lora)
        return list(finish(engine)["alone"].outputs[0].token_ids)

    return alone


def params(count: int = NEW_TOKENS) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, detokenize=False)


def test_one_adapter_in_memory_serves_requests_in_turn(start, alone, adapters, finish) -> None:
    engine, wanted = start(max_loras=1, max_cpu_loras=1), [None, *adapters[:3]] * 3
    for number, lora in enumerate(wanted):
        engine.add_request(number, {"prompt_token_ids": PROMPT}, params(), lora_request=lora)
    last = finish(engine)
    engine.check_integrity()
    assert [last[str(number)].outputs[0].token_ids for number in range(len(wanted))] == [*map(alone, wanted)]


def test_adapters_are_added_listed_pinned_and_removed(start, adapters) -> None:
    engine = start()
    first, second, third = adapters[:3]
    assert engine.list_loras() == set()
    assert engine.add_lora(first) and engine.add_lora(second) and engine.add_lora(third)
    assert engine.list_loras() == {1, 2, 3}
    assert engine.pin_lora(1)
    with pytest.raises(RuntimeError, match="max_loras is 2 and 1 adapters are pinned; one slot stays"):
        engine.pin_lora(2)
    assert engine.remove_lora(2) and not engine.remove_lora(2)
    with pytest.raises(RuntimeError, match="no adapter 2 in memory"):
        engine.pin_lora(2)
    assert engine.list_loras() == {1, 3}
    assert engine.add_lora(LoRARequest("fourth", 4, second.lora_path))
    assert engine.add_lora(
        LoRARequest("fifth", 5, second.lora_path)
    )  # in place of the third, used before the fourth
    assert engine.list_loras() == {1, 4, 5}


def test_a_removed_adapter_serves_the_requests_that_have_it(
    start, alone, adapters, tmp_path: Path, finish
) -> None:
    engine = start()
    path = shutil.copytree(adapters[0].lora_path, tmp_path / "adapter")
    prompt = {"prompt_token_ids": PROMPT}
    engine.add_request("old", prompt, params(), lora_request=LoRARequest("a", 7, str(path)))
    while not any(output.outputs[0].token_ids for output in engine.step()):
        pass
    assert engine.remove_lora(7)
    shutil.rmtree(path)
    shutil.copytree(adapters[1].lora_path, path)
    engine.add_request("new", prompt, params(), lora_request=LoRARequest("a", 8, str(path)))
    last = finish(engine)
    assert last["old"].outputs[0].token_ids == alone(adapters[0])
    assert last["new"].outputs[0].token_ids == alone(adapters[1])


def test_an_adapter_that_cannot_be_loaded_ends_its_requests_alone(
    start, alone, adapters, tmp_path: Path, finish
) -> None:
    engine = start()
    good, missing = adapters[0], LoRARequest("missing", 9, str(tmp_path / "nowhere"))
    prompt = {"prompt_token_ids": PROMPT}
    engine.add_request("base", prompt, params())
    engine.add_request("missing", prompt, params(), lora_request=missing)
    engine.add_request("good", prompt, params(), lora_request=good)
    other = LoRARequest("x", good.lora_int_id, "/elsewhere")
    engine.add_request("other", prompt, params(), lora_request=other)
    last = finish(engine)
    engine.check_integrity()
    assert last["missing"].outputs[0].finish_reason == last["other"].outputs[0].finish_reason == "error"
    assert last["base"].outputs[0].token_ids == alone(None)
    assert last["good"].outputs[0].token_ids == alone(good)
    words = r"add_lora: the adapter missing can't be loaded: .*adapter_config.json can't be read"
    with pytest.raises(RuntimeError, match=words):
        engine.add_lora(missing)
    (tmp_path / "nowhere").mkdir()
    save(tmp_path / "nowhere", 9)
    assert engine.add_lora(missing)


def test_aborted_requests_leave_their_adapters(start, alone, adapters, finish) -> None:
    engine = start(max_loras=1, max_cpu_loras=1)
    for number, lora in enumerate(adapters[:3]):
        engine.add_request(number, {"prompt_token_ids": PROMPT}, params(50), lora_request=lora)
    while not engine.step():
        pass
    engine.abort_request(["0", "1"])
    last = finish(engine)
    assert last["2"].outputs[0].token_ids[:NEW_TOKENS] == alone(adapters[2])


def test_wrong_adapters_of_requests_are_refused(start) -> None:
    engine = start()
    for lora, words in (
        ("adapter", "lora_request is 'adapter'; expected `LoRARequest`"),
        (LoRARequest("a", 0, "/a"), "lora_int_id is 0; expected `int` >= 1"),
        (LoRARequest("a", 1, ""), "lora_path is ''"),
    ):
        with pytest.raises(InvalidRequestError, match=words):
            engine.add_request("wrong", {"prompt_token_ids": [3]}, params(), lora_request=lora)
    with pytest.raises(ValueError, match="max_cpu_loras is 1; it must be at least max_loras, 2"):
        start(max_cpu_loras=1)


def test_many_adapters_share_few_slots(start, alone, adapters, finish) -> None:
    engine = start(max_loras=4, max_cpu_loras=6, max_num_seqs=16)
    for turn in range(2):
        for lora in [*adapters, None]:
            name, prompt = f"{turn} {lora and lora.lora_name}", {"prompt_token_ids": PROMPT}
            engine.add_request(name, prompt, params(), lora_request=lora)
    last = finish(engine)
    engine.check_integrity()
    assert len(last) == 26 and len(engine.list_loras()) <= 6
    for lora in [*adapters, None]:
        found = [last[f"{turn} {lora and lora.lora_name}"].outputs[0].token_ids for turn in range(2)]
        assert found == [alone(lora)] * 2


def test_caller_waits_for_an_adapter_without_polling(
    start, adapters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller that polls would keep the interpreter from the thread that reads."""
    engine = start()
    operations, polls = engine._core.operations, count()
    finished = operations.finished
    monkeypatch.setattr(operations, "finished", lambda: (next(polls), finished())[1])
    assert engine.add_lora(adapters[0])
    assert next(polls) == 1
