"""Tensors that no part of a model takes: refused inside layers, left out with a line in the log elsewhere."""

import json
import logging
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from architectures import ARCHITECTURES, SIZES
from safetensors.torch import load_file, save_file

from engine_server import EngineArgs, LLMEngine, SamplingParams
from engine_server.modeling.formats.checkpoints.stored import stored_tensors
from engine_server.modeling.loader.leftovers import KNOWN, parameters_of, untaken

ATTENTION = "model.layers.0.self_attn"
PROJECTION = f"{ATTENTION}.q_proj"


def with_tensors(model: Path, folder: Path, added: dict[str, torch.Tensor], **settings: Any) -> Path:
    """Copy a model's folder, and add or replace tensors, and settings of config.json."""
    shutil.copytree(model, folder, dirs_exist_ok=True)
    weights = folder / "model.safetensors"
    save_file(load_file(weights) | added, weights, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | settings))
    return folder


def engine_of(folder: Path) -> LLMEngine:
    args = EngineArgs(
        model=str(folder), dtype="float32", skip_tokenizer_init=True, num_gpu_blocks_override=16
    )
    return LLMEngine.from_engine_args(args)


def answer(engine: LLMEngine, finish: Any) -> list[int]:
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, detokenize=False)
    engine.add_request("0", {"prompt_token_ids": [5, 77, 31, 8, 12]}, params)
    tokens: list[int] = finish(engine)["0"].outputs[0].token_ids
    return tokens


@pytest.mark.parametrize(
    "name",
    [
        f"{ATTENTION}.q_norm.weight",
        f"{PROJECTION}.weight_scale",
        f"{PROJECTION}.bias",
        f"{PROJECTION}.qweight",
        "model.layers.1.pre_mlp_layernorm.weight",
        "model.norm.bias",
        "lm_head.bias",
    ],
)
def test_tensor_inside_a_layer_that_no_parameter_takes_is_refused(
    tiny_llama: Path, tmp_path: Path, name: str
) -> None:
    with_tensors(tiny_llama, tmp_path, {name: torch.ones(4)})
    with pytest.raises(ValueError, match=f"can't be loaded: no part of the model takes '{re.escape(name)}'"):
        engine_of(tmp_path)


def test_many_tensors_with_hostile_names_are_cut_and_cleaned(tiny_llama: Path, tmp_path: Path) -> None:
    names = [f"{ATTENTION}.\n{'x' * 1000}{number}" for number in range(20)]
    with_tensors(tiny_llama, tmp_path, {name: torch.ones(1) for name in names})
    with pytest.raises(ValueError, match="and 17 more, inside layers that it runs") as caught:
        engine_of(tmp_path)
    assert len(str(caught.value)) < 1000 + len(str(tmp_path)) and "\n" not in str(caught.value)


@pytest.mark.parametrize("scales", [True, False])
@pytest.mark.parametrize("file", ["quant_config.json", None])
def test_float8_codes_without_a_quantization_config_are_refused(
    tiny_llama: Path, tmp_path: Path, scales: bool, file: str | None
) -> None:
    weight = load_file(tiny_llama / "model.safetensors")[f"{PROJECTION}.weight"]
    added = {f"{PROJECTION}.weight": weight.to(torch.float8_e4m3fn)}
    if scales:
        added[f"{PROJECTION}.weight_scale"] = torch.ones(1)
    with_tensors(tiny_llama, tmp_path, added)
    if file is not None:
        (tmp_path / file).write_text('{"w_bit": 4}')
    message = rf"'{PROJECTION}.weight' is F8_E4M3, and its config doesn't say how codes are read"
    with pytest.raises(ValueError, match=message + (f"; {file} beside it" if file else "$")):
        engine_of(tmp_path)


def test_parts_that_the_model_does_not_have_are_left_out_and_logged(
    tiny_llama: Path, tmp_path: Path, finish: Any, caplog: pytest.LogCaptureFixture
) -> None:
    absent = [
        "v_head.summary.weight",
        "mtp.layers.0.self_attn.q_proj.weight",
        "mtp.fc.weight",
        "vision_tower.patch.weight",
        "model.layers.7.self_attn.q_norm.weight",
        "model.projector.weight",
    ]
    known = [
        f"{ATTENTION}.rotary_emb.inv_freq",
        f"{ATTENTION}.masked_bias",
        "model.embeddings.position_ids",
    ]
    with_tensors(tiny_llama, tmp_path, {name: torch.ones(2) for name in absent + known})
    caplog.set_level(logging.INFO)
    engine = engine_of(tmp_path)
    [line] = [one.getMessage() for one in caplog.records if "left out" in one.getMessage()]
    assert line.endswith(
        "the model has no such part: 'model.layers.7' (1 tensors), 'model.projector' (1 tensors), "
        "'mtp' (2 tensors) and 2 more"
    )
    assert answer(engine, finish) == answer(engine_of(tiny_llama), finish)


@pytest.mark.transformers
@pytest.mark.parametrize("name", ["llama", "mixtral", "gemma 3", "gpt2", "deepseek-v3", "opt"])
def test_tensors_that_nothing_takes_are_those_that_transformers_reports(name: str, tmp_path: Path) -> None:
    architecture = next(one for one in ARCHITECTURES if one.name == name)
    kind = getattr(transformers, architecture.model)
    torch.manual_seed(0)
    made = kind(kind.config_class(**SIZES | architecture.settings))
    made.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    layer = next(each for each in weights if ".0." in each)
    surplus = [
        layer.rpartition(".")[0] + ".surplus",
        "other.weight",
        layer.replace(".0.", ".99."),
        "lm_head.x",
    ]
    with_tensors(tmp_path, tmp_path / "more", {each: torch.ones(1) for each in surplus})
    _, info = kind.from_pretrained(tmp_path / "more", output_loading_info=True)
    tensors = stored_tensors(tmp_path / "more")
    known = made.state_dict().keys()
    parameters = parameters_of(made, known, tensors)
    found = {parameters[each] for each in untaken(made, parameters, known)}
    assert found == {each for each in info["unexpected_keys"] if not KNOWN.search(each)} != set()
    assert set(parameters) - set(surplus) == set(weights)


@pytest.mark.transformers
def test_head_of_an_encoder_is_left_out_where_it_embeds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sizes = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.BertConfig(**sizes, intermediate_size=48, max_position_embeddings=64)
    torch.manual_seed(0)
    transformers.BertForPreTraining(config).save_pretrained(tmp_path)
    caplog.set_level(logging.INFO)
    args = EngineArgs(model=str(tmp_path), dtype="float32", skip_tokenizer_init=True, runner="pooling")
    LLMEngine.from_engine_args(args)
    assert any(re.search(r"no such part: 'cls' \(\d+ tensors\)$", one.getMessage()) for one in caplog.records)
