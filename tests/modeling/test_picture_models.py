"""Models that take pictures, as they are loaded: their text, their encoders, and the states of both together."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from tiers import tiered
from tiny_pictures import FAMILIES, PATCH, Family, tiny_models
from torch import Tensor

from engine_server import EngineArgs, LLMEngine, RequestOutput, SamplingParams
from engine_server.core.loaded_model import LoadedModel
from engine_server.modeling.attention.hook import ForwardContext
from engine_server.modeling.attention.interface import StepInputs
from engine_server.modeling.cache.ledger import MemoryLedger
from engine_server.modeling.device.communicator import Communicator
from engine_server.modeling.loader.encoder import encoder_parts
from engine_server.modeling.loader.probe import Probe
from engine_server.modeling.platform.cpu import CpuPlatform

pytestmark = pytest.mark.transformers

Finish = Callable[[LLMEngine], dict[str, RequestOutput]]
BEFORE, AFTER = [0, 87, 85, 71, 84], [84, 28, 223, 74]
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
# All families, of which the default tier has a few.
TIERED = tiered(FAMILIES, "llava", "smolvlm", "idefics3", "internvl", "mistral3", more=FAMILIES)
# What transformers' encoders take.
INPUTS = ("pixel_values", "pixel_attention_mask", "image_sizes", "high_res_pixel_values", "image_grid_thw")


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Family], Path]:
    """Return the folder of a family's tiny model."""
    return tiny_models(tmp_path_factory)


def load(folder: Path, **options: Any) -> LoadedModel:
    config = EngineArgs(model=str(folder), **{"dtype": "float32"} | options).create_engine_config()
    platform = CpuPlatform()
    return LoadedModel(config, platform, MemoryLedger(platform), Communicator())


def reference(folder: Path) -> Any:
    """Return the model as transformers loads it."""
    return transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def processed(family: Family, folder: Path, image: Image.Image) -> dict[str, Tensor]:
    """Return what the family's encoder takes, by the image processor of transformers."""
    kind: Any = transformers.AutoImageProcessor
    options = {"patch_size": 2 * PATCH} if family == "mistral3" else {}
    found = kind.from_pretrained(folder, backend="pil")([image], return_tensors="pt", **options)
    return {name: value for name, value in found.items() if name in INPUTS}


@torch.inference_mode()
def merged_states(loaded: LoadedModel, token_ids: Tensor, rows: Tensor) -> Tensor:
    """Return the hidden states of a prompt in which rows replace the embeddings of placeholders."""
    embeds = loaded.model.get_input_embeddings()(token_ids)
    embeds[token_ids == loaded.model.config.image_token_id] = rows
    count = token_ids.shape[1]
    arguments = {"inputs_embeds": embeds, "position_ids": torch.arange(count)[None], "use_cache": False}
    with ForwardContext(Probe()).run(StepInputs.of([0], [count], [count])):
        return loaded.states(arguments)


def generated(folder: Path, finish: Finish, **options: Any) -> list[int]:
    """Return the tokens that the engine adds to a prompt of text."""
    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=str(folder), dtype="float32", num_gpu_blocks_override=64, disable_log_stats=True, **options
        )
    )
    engine.add_request("text", {"prompt_token_ids": BEFORE + AFTER}, GREEDY)
    return [*finish(engine)["text"].outputs[0].token_ids]


def continued(folder: Path) -> list[int]:
    """Return the tokens that transformers adds to the prompt of `generated`."""
    prompt, model = torch.tensor([BEFORE + AFTER]), reference(folder)
    model.generation_config.eos_token_id = None
    with torch.inference_mode():
        output = model.generate(
            input_ids=prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=12, do_sample=False
        )
    return [*output[0, prompt.shape[1] :].tolist()]


@pytest.mark.parametrize("family", FAMILIES)
def test_states_of_a_prompt_with_a_picture_equal_those_of_transformers(
    family: Family, folder_of: Callable[[Family], Path]
) -> None:
    folder = folder_of(family)
    loaded, inputs = load(folder), processed(family, folder, picture(50, 40))
    rows = loaded.picture_rows(inputs)
    placeholders = [loaded.model.config.image_token_id] * len(rows)
    token_ids = torch.tensor([BEFORE + placeholders + AFTER])
    with torch.inference_mode():
        expected = reference(folder).model(input_ids=token_ids, **inputs, use_cache=False)
    torch.testing.assert_close(
        merged_states(loaded, token_ids, rows), expected.last_hidden_state[0], rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("family", TIERED)
def test_rows_differ_between_pictures(family: Family, folder_of: Callable[[Family], Path]) -> None:
    folder = folder_of(family)
    loaded = load(folder)
    one, other = (
        loaded.picture_rows(processed(family, folder, picture(40, 40, seed=seed))) for seed in (1, 2)
    )
    assert one.shape == other.shape
    assert (one - other).abs().max() > 1


@pytest.mark.parametrize("family", TIERED)
def test_text_alone_gives_the_tokens_of_transformers(
    family: Family, folder_of: Callable[[Family], Path], finish: Finish
) -> None:
    folder = folder_of(family)
    assert generated(folder, finish) == continued(folder)


@pytest.mark.parametrize("family", TIERED)
def test_language_model_only_loads_no_encoder(
    family: Family, folder_of: Callable[[Family], Path], finish: Finish
) -> None:
    folder = folder_of(family)
    loaded = load(folder, language_model_only=True)
    assert not encoder_parts(loaded.model)
    assert "language_model_only" in loaded.refuses_pictures
    assert generated(folder, finish, language_model_only=True) == continued(folder)


@pytest.mark.parametrize("family", TIERED)
def test_rounding_leaves_the_encoder_alone(family: Family, folder_of: Callable[[Family], Path]) -> None:
    folder = folder_of(family)
    dense, rounded = load(folder), load(folder, quantization="int8")
    original = dict(reference(folder).named_parameters())
    modules = {module: name for name, module in rounded.model.named_modules()}
    compared = [
        (f"{modules[part.module]}.{name}", weight)
        for part in encoder_parts(rounded.model)
        for name, weight in part.module.named_parameters()
    ]
    assert compared
    for name, weight in compared:
        assert torch.equal(weight, original[name])
    inputs = processed(family, folder, picture(50, 40))
    rows = rounded.picture_rows(inputs)
    assert torch.equal(rows, dense.picture_rows(inputs))
    token_ids = torch.tensor([BEFORE + [dense.model.config.image_token_id] * len(rows)])
    states, exact = (merged_states(loaded, token_ids, rows) for loaded in (rounded, dense))
    assert not torch.equal(states, exact)  # the text's weights are rounded
