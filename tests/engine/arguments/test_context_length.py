"""The context length of a model by the ropes in its config.json and by hf_overrides."""

import json
from pathlib import Path
from typing import Any

import pytest

from engine_server import EngineArgs
from engine_server.model_sources.hf_config import read_hf_config

YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}
GEMMA_3 = {
    "model_type": "gemma3_text", "vocab_size": 96, "hidden_size": 32, "num_attention_heads": 4, "head_dim": 8,
    "num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"],
    "architectures": ["Gemma3ForCausalLM"],
}  # fmt: skip


def args_of(folder: Path, settings: dict[str, Any], **options: Any) -> EngineArgs:
    llama = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 96, "hidden_size": 32,
        "num_attention_heads": 4, "num_hidden_layers": 1, "bos_token_id": 0, "eos_token_id": 1,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(llama | settings))
    (folder / "model.safetensors").touch()
    return EngineArgs(model=str(folder), skip_tokenizer_init=True, **options)


def by_type(full: dict[str, Any], **more: Any) -> dict[str, Any]:
    ropes = {"sliding_attention": {"rope_type": "default", "rope_theta": 1e4}, "full_attention": full}
    return GEMMA_3 | {"rope_parameters": ropes} | more


@pytest.mark.parametrize(
    ("limit", "settings", "default", "longest"),
    [
        (64, {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, 64, 64),
        (64, {"rope_parameters": YARN | {"original_max_position_embeddings": 64}}, 256, 256),
        # As Qwen's model cards write it, before the standard names.
        (80, {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}}, 256, 256),
        # The limit has the factor already.
        (256, {"rope_parameters": YARN | {"original_max_position_embeddings": 64}}, 256, 256),
        (512, {"rope_parameters": YARN | {"original_max_position_embeddings": 64}}, 512, 512),
        # transformers takes the limit for the original length.
        (64, {"rope_parameters": YARN}, 256, 256),
        # An original length outside of the parameters is the one that the rope uses.
        (
            64,
            {
                "rope_parameters": YARN | {"original_max_position_embeddings": 64},
                "original_max_position_embeddings": 32,
            },
            128,
            128,
        ),
        (
            256,
            {"rope_parameters": YARN | {"factor": None, "original_max_position_embeddings": 64}},
            256,
            256,
        ),
        (64, {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 8.0}}, 64, 512),
        (64, {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, 128, 128),
        (64, by_type(YARN | {"original_max_position_embeddings": 64}), 256, 256),
        (64, by_type({"rope_type": "linear", "rope_theta": 1e4, "factor": 8.0}), 64, 512),
    ],
    ids=str,
)  # fmt: skip
def test_context_is_what_the_rope_makes_of_the_limit(
    tmp_path: Path, limit: int, settings: dict[str, Any], default: int, longest: int
) -> None:
    settings = settings | {"max_position_embeddings": limit}

    def length(**options: Any) -> int:
        return args_of(tmp_path, settings, **options).create_engine_config().model_config.max_model_len

    assert length() == default
    assert length(max_model_len=longest) == longest
    with pytest.raises(ValueError, match=f"max_model_len is {longest + 1}; .* end at {longest}$"):
        length(max_model_len=longest + 1)


@pytest.mark.parametrize("factor", ["4", True, -1.0, 0])
def test_rope_with_a_wrong_factor_is_refused_by_name(tmp_path: Path, factor: object) -> None:
    settings = {"max_position_embeddings": 64, "rope_parameters": YARN | {"factor": factor}}
    with pytest.raises(ValueError, match="factor"):
        args_of(tmp_path, settings).create_engine_config()


@pytest.mark.parametrize("name", ["rope_scaling", "rope_parameters"])
def test_override_of_a_rope_keeps_what_it_does_not_name(tmp_path: Path, name: str) -> None:
    settings = {"max_position_embeddings": 64, "rope_theta": 5e5, "partial_rotary_factor": 0.5}
    overrides = {name: {"type": "yarn", "factor": 4.0}}
    args = args_of(tmp_path, settings, hf_overrides=overrides)
    rope = read_rope(tmp_path, args)
    assert (rope["rope_theta"], rope["partial_rotary_factor"]) == (5e5, 0.5)
    assert (rope["rope_type"], rope["factor"], rope["original_max_position_embeddings"]) == ("yarn", 4.0, 64)
    assert args.create_engine_config().model_config.max_model_len == 256


def test_override_of_a_rope_changes_one_parameter_or_removes_the_scaling(tmp_path: Path) -> None:
    settings = {"max_position_embeddings": 64, "rope_parameters": YARN}
    changed = read_rope(
        tmp_path, args_of(tmp_path, settings, hf_overrides={"rope_parameters": {"factor": 2.0}})
    )
    assert (changed["rope_type"], changed["factor"]) == ("yarn", 2.0)
    assert (
        read_rope(tmp_path, args_of(tmp_path, settings, hf_overrides={"rope_theta": 9.0}))["rope_theta"]
        == 9.0
    )
    removed = args_of(tmp_path, settings, hf_overrides={"rope_scaling": None})
    assert removed.create_engine_config().model_config.max_model_len == 64


def test_ropes_by_type_of_layer_are_overridden_by_type(tmp_path: Path) -> None:
    settings = by_type({"rope_type": "default", "rope_theta": 1e6}, max_position_embeddings=64)
    overrides = {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 2.0}}}
    ropes = read_rope(tmp_path, args_of(tmp_path, settings, hf_overrides=overrides))
    assert ropes["full_attention"] == {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e6}
    assert ropes["sliding_attention"]["rope_type"] == "default"


@pytest.mark.parametrize(
    ("settings", "overrides", "message"),
    [
        ({}, {"rope_scaling": 4}, "hf_overrides has 4 as rope_scaling; it takes an object"),
        ({}, {"rope_scaling": {"rope_type": "yarn"}}, "hf_overrides makes a rope that transformers refuses"),
        (
            by_type({"rope_type": "default", "rope_theta": 1e6}),
            {"rope_parameters": {"factor": 2.0}},
            "hf_overrides has factor in rope_parameters; .* sliding_attention, full_attention",
        ),
        (
            {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]},
            {"rope_theta": 1.0},
            "GPT2Config has no rope",
        ),
    ],
    ids=str,
)
def test_wrong_override_of_a_rope_is_refused(
    tmp_path: Path, settings: dict[str, Any], overrides: dict[str, Any], message: str
) -> None:
    args = args_of(tmp_path, {"max_position_embeddings": 64} | settings, hf_overrides=overrides)
    with pytest.raises(ValueError, match=message):
        args.create_engine_config()


def read_rope(folder: Path, args: EngineArgs) -> dict[str, Any]:
    rope: dict[str, Any] = read_hf_config(folder, args.hf_overrides).get_text_config().rope_parameters
    return rope
