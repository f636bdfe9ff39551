"""Models with encoders that take no pictures here: why, and that they are served as text."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tiny_pictures import TEXT, VISION, Family, tiny_model
from torch import Tensor, nn

from engine_server import EngineArgs, LLMEngine, RequestOutput, SamplingParams
from engine_server.modeling.loader import sample
from engine_server.modeling.loader.sample import copy_with_encoder
from engine_server.modeling.model.picture_encoder import picture_rows
from engine_server.modeling.model.picture_trial import agrees_with_transformers, refusal_by_trial

pytestmark = pytest.mark.transformers

ROPE = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10_000.0}
QWEN_VISION = {
    "depth": 2, "hidden_size": 32, "num_heads": 2, "intermediate_size": 48, "out_hidden_size": 64, "patch_size": 14,
    "spatial_merge_size": 2, "temporal_patch_size": 2,
}  # fmt: skip
GRID = torch.tensor([[1, 4, 6]])
PATCHES = {"pixel_values": torch.rand(24, 3 * 2 * 14 * 14), "image_grid_thw": GRID}
# By model type: settings beside those of TEXT, what the encoder takes, and a part of the reason.
Refused = tuple[dict[str, Any], dict[str, Tensor], str]
REFUSED: dict[str, Refused] = {
    "qwen2_5_vl": (
        {
            "text_config": TEXT | {"rope_parameters": ROPE},
            "vision_config": QWEN_VISION | {"fullatt_block_indexes": [1], "window_size": 56},
        },
        PATCHES,
        "positions on several axes",
    ),
    "qwen3_vl": (
        {
            "text_config": TEXT | {"rope_parameters": ROPE},
            "vision_config": QWEN_VISION | {"deepstack_visual_indexes": [0]},
        },
        PATCHES,
        "positions on several axes",
    ),
    "gemma3": (
        {"text_config": TEXT, "vision_config": VISION, "mm_tokens_per_image": 4, "image_token_id": 300},
        {"pixel_values": torch.rand(1, 3, 28, 28)},
        "processor",
    ),
}
PROMPT = [5, 9, 17, 40, 2]


def save_model(model_type: str, folder: Path) -> Any:
    """Save a tiny random model that has no files of a processor, and return it."""
    settings, _, _ = REFUSED[model_type]
    torch.manual_seed(0)
    kind: Any = transformers.AutoModelForImageTextToText
    config = transformers.AutoConfig.for_model(model_type, **settings | {"tie_word_embeddings": False})
    model = kind.from_config(config).float().eval()
    model.save_pretrained(folder)
    return model


def start(folder: Path, **options: Any) -> LLMEngine:
    return LLMEngine.from_engine_args(
        EngineArgs(
            model=str(folder), dtype="float32", num_gpu_blocks_override=64, disable_log_stats=True,
            **{"skip_tokenizer_init": True, **options},
        )
    )  # fmt: skip


@pytest.mark.parametrize("model_type", REFUSED)
def test_trial_finds_models_in_which_a_picture_acts_by_more_than_its_embeddings(model_type: str) -> None:
    settings, inputs, _ = REFUSED[model_type]
    kind: Any = transformers.AutoModelForImageTextToText
    with torch.device("meta"):
        model = kind.from_config(transformers.AutoConfig.for_model(model_type, **settings))
    copy = nn.Module.float(copy_with_encoder(model, torch.device("cpu")))
    copy.set_attn_implementation("eager")
    assert not agrees_with_transformers(copy, inputs, picture_rows(copy, inputs))


@pytest.mark.parametrize("family", ["llava", "idefics3"])
def test_trial_runs_with_parameters_of_which_the_copy_has_one_row(
    family: Family, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample, "MOST_RANDOM", 1)
    kind: Any = transformers.AutoModelForImageTextToText
    model = kind.from_pretrained(tiny_model(family, tmp_path))
    assert refusal_by_trial(model, tmp_path) == ""


@pytest.mark.parametrize("model_type", REFUSED)
def test_model_that_takes_no_pictures_is_served_as_text_without_its_encoder(
    model_type: str, tmp_path: Path, finish: Callable[[LLMEngine], dict[str, RequestOutput]]
) -> None:
    model = save_model(model_type, tmp_path)
    engine = start(tmp_path)
    assert REFUSED[model_type][2] in engine.config.model_config.refuses_pictures
    assert "encoder_of_pictures" not in engine.config.device_config.memory_bytes
    engine.add_request(
        "text",
        {"prompt_token_ids": PROMPT},
        SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True),
    )
    found = finish(engine)["text"].outputs[0].token_ids
    prompt = torch.tensor([PROMPT])
    with torch.inference_mode():
        expected = model.generate(
            input_ids=prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=12, min_new_tokens=12,
            do_sample=False,
        )  # fmt: skip
    assert [*found] == expected[0, len(PROMPT) :].tolist()


def test_model_without_a_processor_says_so(tmp_path: Path) -> None:
    folder = tiny_model("llava", tmp_path)
    (folder / "preprocessor_config.json").unlink()
    engine = start(folder)
    assert "LlavaProcessor" in engine.config.model_config.refuses_pictures


def test_model_that_takes_pictures_refuses_nothing(tmp_path: Path) -> None:
    config = start(tiny_model("llava", tmp_path), skip_tokenizer_init=False).config
    assert not config.model_config.refuses_pictures
    assert config.device_config.memory_bytes["encoder_of_pictures"]


def test_text_model_refuses_pictures(tiny_llama: Path) -> None:
    assert start(tiny_llama).config.model_config.refuses_pictures == "the model takes text alone"
