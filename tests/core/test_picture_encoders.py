"""Engines whose models take pictures: the encoder beside adapters, after a sleep, and on two ranks."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from adapters import greedy, save_lora
from tiny_pictures import TILE, tiny_model

from engine_server import EngineArgs, LLMEngine, LoRARequest, RequestOutput, SamplingParams
from engine_server.modeling.adapters.peft_folder import AdapterError

Finish = Callable[[LLMEngine], dict[str, RequestOutput]]
PROMPT = [87, 85, 71, 84, 28]
GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
PICTURE = {"pixel_values": torch.linspace(-1, 1, 3 * TILE * TILE).view(1, 3, TILE, TILE)}
OF_TEXT = r".*language_model.*\.(q_proj|v_proj|down_proj)"


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model("llava", tmp_path_factory.mktemp("llava"))


def start(folder: Path, **options: Any) -> LLMEngine:
    return LLMEngine.from_engine_args(
        EngineArgs(
            model=str(folder), dtype="float32", num_gpu_blocks_override=64, disable_log_stats=True, device="cpu",
            **options,
        )
    )  # fmt: skip


def reference(folder: Path) -> Any:
    return transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()


def answer(engine: LLMEngine, finish: Finish, **adapter: Any) -> list[int]:
    engine.add_request("text", {"prompt_token_ids": PROMPT}, GREEDY, **adapter)
    return [*finish(engine)["text"].outputs[0].token_ids]


def rows(engine: LLMEngine) -> torch.Tensor:
    found: torch.Tensor = engine._core.executor.first.loaded.picture_rows(PICTURE)
    return found


@pytest.mark.parametrize("level", [1, 2])
def test_encoder_survives_a_sleep(llava: Path, finish: Finish, level: int) -> None:
    engine = start(llava)
    before = rows(engine), answer(engine, finish)
    engine.sleep(level)
    engine.wake_up()
    assert torch.equal(rows(engine), before[0])
    assert answer(engine, finish) == before[1]


def test_adapter_changes_the_text_and_not_the_encoder(llava: Path, tmp_path: Path, finish: Finish) -> None:
    folder = save_lora(reference(llava), tmp_path, 1, target_modules=OF_TEXT)
    engine = start(llava, enable_lora=True)
    assert torch.equal(rows(engine), rows(start(llava)))
    found = answer(engine, finish, lora_request=LoRARequest("text", 1, str(folder)))
    assert found == greedy(reference(llava), folder, PROMPT, 8)
    assert found != answer(engine, finish)


def test_adapter_of_the_encoder_is_refused(llava: Path, tmp_path: Path) -> None:
    folder = save_lora(reference(llava), tmp_path, 1, target_modules=r".*vision_tower.*\.q_proj")
    runner = start(llava, enable_lora=True)._core.executor.first
    with pytest.raises(AdapterError, match="vision_tower"):
        runner.read_adapter(LoRARequest("encoder", 1, str(folder)))


def test_adapter_applies_to_rows_of_several_requests(llava: Path, tmp_path: Path, finish: Finish) -> None:
    folder = save_lora(reference(llava), tmp_path, 1, target_modules=OF_TEXT)
    engine = start(llava, enable_lora=True)
    for name in ("one", "two", "three"):
        lora = LoRARequest("text", 1, str(folder))
        engine.add_request(name, {"prompt_token_ids": PROMPT}, GREEDY, lora_request=lora)
    expected = greedy(reference(llava), folder, PROMPT, 8)
    assert [[*one.outputs[0].token_ids] for one in finish(engine).values()] == [expected] * 3


def test_each_of_two_ranks_has_the_whole_encoder(llava: Path, finish: Finish) -> None:
    one, two = start(llava), start(llava, tensor_parallel_size=2)
    assert not two.config.model_config.refuses_pictures
    sizes = [engine.config.device_config.memory_bytes["encoder_of_pictures"] for engine in (one, two)]
    assert sizes[0] == sizes[1] > 0
    assert torch.equal(rows(one), rows(two))
    assert answer(one, finish) == answer(two, finish)
