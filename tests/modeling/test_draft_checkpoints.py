"""Draft heads whose files are damaged, incomplete, or made for another target, and further forms of their files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from draft_checkpoints import DRAFT_VOCABULARY, VOCABULARY, WEIGHTS, save_eagle3, save_mtp, save_target
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from engine_server import EngineArgs, EngineConfig
from engine_server.modeling.device.communicator import Communicator
from engine_server.modeling.drafting.eagle3 import Eagle3Head
from engine_server.modeling.drafting.eagle3_folder import load_eagle3
from engine_server.modeling.drafting.mtp import MtpHead
from engine_server.modeling.drafting.mtp_checkpoint import load_mtp
from engine_server.modeling.loader.model_loader import load_model
from engine_server.modeling.platform.cpu import CpuPlatform

pytestmark = [pytest.mark.transformers, pytest.mark.usefixtures("shared_trials")]

Loaded = tuple[EngineConfig, PreTrainedModel]
# Changes tensors in place.
Change = Callable[[dict[str, Tensor]], Any]
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)


FURTHER_SETTINGS = (
    "eagle_config",
    "head_dim",
    "norm_before_residual",
    "quantization_config",
    "rope_scaling",
    "target_hidden_size",
)


def load_target(folder: Path, **options: Any) -> Loaded:
    args = EngineArgs(model=str(folder), skip_tokenizer_init=True, dtype="float32", **options)
    config = args.create_engine_config()
    return config, load_model(config.model_config, config.load_config, CpuPlatform(), Communicator())


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    folder = tmp_path_factory.mktemp("target")
    save_target(folder)
    return load_target(folder)


class MtpTarget(NamedTuple):
    """A checkpoint with a multi-token prediction module, whose target was loaded from the whole file of weights."""

    folder: Path
    whole: bytes
    loaded: Loaded


@pytest.fixture(scope="module")
def mtp_targets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, MtpTarget]:
    """A target by the layout of its checkpoint."""
    targets = {}
    for layout in ("deepseek", "mimo"):
        folder = tmp_path_factory.mktemp(layout)
        save_mtp(folder, layout)
        targets[layout] = MtpTarget(folder, (folder / WEIGHTS).read_bytes(), load_target(folder))
    return targets


def eagle3(folder: Path, loaded: Loaded) -> Eagle3Head:
    config, target = loaded
    return load_eagle3(folder, target, config.model_config, config.load_config, CpuPlatform())


def mtp(loaded: Loaded) -> MtpHead:
    config, target = loaded
    return load_mtp(target, config.model_config, config.load_config, CpuPlatform())


def change_file(path: Path, change: Change) -> None:
    tensors = load_file(path)
    change(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, {"format": "pt"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda own: own.pop("midlayer.mlp.up_proj.weight"), r"no weights for midlayer\.mlp\.up_proj\.weight"),
        (lambda own: own.pop("fc.weight"), r"no weights for fc\.weight"),
        (lambda own: own.pop("norm.weight"), r"no weights for norm\.weight"),
        (lambda own: own.pop("d2t"), r"no d2t, which maps the 40 tokens of draft_vocab_size to the target's 96"),
        (
            lambda own: own.update({"fc.weight": torch.ones(32, 64)}),
            r"fc\.weight has the shape \[32, 64\]; expected is \[32, 96\]",
        ),
        (
            lambda own: own.update({"lm_head.weight": torch.ones(39, 32)}),
            r"lm_head\.weight has the shape \[39, 32\]; expected is \[40, 32\]",
        ),
        (
            lambda own: own.update({"embed_tokens.weight": torch.ones(95, 32)}),
            r"embed_tokens\.weight has the shape \[95, 32\]; expected is \[96, 32\]",
        ),
        (
            lambda own: own.update({"midlayer.self_attn.q_norm.weight": torch.ones(8)}),
            r"unknown weights: midlayer\.self_attn\.q_norm\.weight",
        ),
        (lambda own: own["d2t"].add_(VOCABULARY), r"d2t maps to the token \d+; the target's vocabulary has 96"),
        (lambda own: own["d2t"].sub_(VOCABULARY), r"d2t maps to the token -\d+; the target's vocabulary has 96"),
        (
            lambda own: own.update(d2t=-torch.arange(DRAFT_VOCABULARY)),
            "d2t maps several tokens to one of the target's",
        ),
        (lambda own: own.update(d2t=own["d2t"][:-1]), r"d2t has the shape \[39\]; expected is \[40\]"),
        (lambda own: own.update(d2t=own["d2t"].float()), "d2t is F32; expected is I64 or I32"),
        (lambda own: own["t2d"].logical_not_(), "d2t and t2d name different tokens of the target"),
        (lambda own: own.update(t2d=own["t2d"][:-1]), r"t2d has the shape \[95\]; expected is \[96\]"),
    ],
)  # fmt: skip
def test_eagle3_head_with_other_tensors_is_refused_by_name(
    tmp_path: Path, llama: Loaded, change: Change, message: str
) -> None:
    save_eagle3(tmp_path)
    change_file(tmp_path / WEIGHTS, change)
    with pytest.raises(ValueError, match=f"the EAGLE-3 head in {tmp_path} can't be loaded: .*{message}"):
        eagle3(tmp_path, llama)


def layer_ids(*layers: Any) -> dict[str, Any]:
    return {"eagle_config": {"eagle_aux_hidden_state_layer_ids": list(layers)}}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "qwen2"}, "model_type is 'qwen2'; llama is supported"),
        ({"num_hidden_layers": 2}, "num_hidden_layers is 2; an EAGLE-3 head has 1 layer"),
        ({"vocab_size": 100}, "vocab_size is 100; the target's is 96"),
        ({"hidden_size": 48}, "target_hidden_size, or else hidden_size, is 48; the target's is 32"),
        ({"target_hidden_size": 64}, "target_hidden_size, or else hidden_size, is 64; the target's is 32"),
        (
            {"hidden_size": 48, "target_hidden_size": 32},
            r"no embed_tokens\.weight; the target's has 32 columns, and hidden_size is 48",
        ),
        ({"draft_vocab_size": "40"}, "draft_vocab_size is '40'; expected is an integer from 1 to"),
        ({"draft_vocab_size": 0}, "draft_vocab_size is 0; expected is an integer from 1 to"),
        ({"norm_before_fc": True}, "norm_before_fc is true, which is not supported"),
        ({"norm_before_residual": "yes"}, "norm_before_residual is 'yes'; expected is true or false"),
        ({"num_key_value_heads": 3}, "num_key_value_heads is 3, which doesn't divide 4 attention heads"),
        ({"head_dim": 3}, "head_dim is 3; expected is an even number"),
        ({"num_attention_heads": 3}, r"config\.json is no configuration of a llama: .*"),
        ({"speculators_model_type": "hass"}, "speculators_model_type is 'hass'; eagle3 is supported"),
        ({"speculators_model_type": "eagle3"}, "transformer_layer_config is None; expected is an object"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state is false"),
        ({"eagle_config": [1]}, r"eagle_config is \[1\]; expected is an object"),
        (
            {"eagle_config": {"eagle_aux_hidden_state_layer_ids": 3}},
            "eagle_aux_hidden_state_layer_ids is 3; expected is a list",
        ),
        (layer_ids(1, 2), r"layers \[1, 2\]; expected are 3 of its 7 layers, ascending"),
        (layer_ids(1, 5, 3), r"layers \[1, 5, 3\]; expected are 3 of its 7 layers, ascending"),
        (layer_ids(1, 3, 7), r"layers \[1, 3, 7\]; expected are 3 of its 7 layers, ascending"),
        (layer_ids("a", "b", "c"), r"layers \['a', 'b', 'c'\]; expected are 3"),
    ],
)
def test_eagle3_head_with_other_settings_is_refused(
    tmp_path: Path, llama: Loaded, config: dict[str, Any], message: str
) -> None:
    save_eagle3(tmp_path)
    whole = json.loads((tmp_path / "config.json").read_text()) | config
    (tmp_path / "config.json").write_text(json.dumps(whole))
    with pytest.raises(ValueError, match=f"the EAGLE-3 head in {tmp_path} can't be loaded: .*{message}"):
        eagle3(tmp_path, llama)


@pytest.mark.more
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_eagle3_head_with_any_setting_is_refused_or_loaded(
    tmp_path: Path, llama: Loaded, data: st.DataObject
) -> None:
    save_eagle3(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    name = data.draw(st.sampled_from([*sorted(config), *FURTHER_SETTINGS]))
    (tmp_path / "config.json").write_text(json.dumps(config | {name: data.draw(anything)}))
    try:
        head = eagle3(tmp_path, llama)
    except ValueError as error:
        assert str(error).startswith(f"the EAGLE-3 head in {tmp_path} can't be loaded: ")
    else:
        assert head.aux_layers == (1, 2, 3)


def test_shallow_target_needs_layers_named(tmp_path: Path) -> None:
    save_target(tmp_path, num_layers=4)
    loaded = load_target(tmp_path)
    save_eagle3(tmp_path / "head")
    with pytest.raises(ValueError, match=r"layers \[1, 1, 0\]; expected are 3 of its 4 layers"):
        eagle3(tmp_path / "head", loaded)
    save_eagle3(tmp_path / "head", **layer_ids(0, 1, 3))
    assert eagle3(tmp_path / "head", loaded).aux_layers == (0, 1, 3)


def test_pickle_is_refused_with_a_remedy(tmp_path: Path, llama: Loaded) -> None:
    save_eagle3(tmp_path)
    (tmp_path / WEIGHTS).rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"pytorch_model\.bin is a pickle.*safetensors\.torch\.save_file"):
        eagle3(tmp_path, llama)


def test_folder_without_files_is_refused(tmp_path: Path, llama: Loaded) -> None:
    with pytest.raises(ValueError, match=r"has no \*\.safetensors"):
        eagle3(tmp_path, llama)
    save_eagle3(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(ValueError, match=r"config\.json"):
        eagle3(tmp_path, llama)


def test_damaged_file_is_refused_by_name(tmp_path: Path, llama: Loaded) -> None:
    save_eagle3(tmp_path)
    content = (tmp_path / WEIGHTS).read_bytes()
    (tmp_path / WEIGHTS).write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=r"model\.safetensors is no readable safetensors file"):
        eagle3(tmp_path, llama)


def rename_layer(tensors: dict[str, Tensor]) -> None:
    for name in [*tensors]:
        tensors[name.replace("midlayer.", "layers.0.")] = tensors.pop(name)


def test_layer_may_have_either_of_its_two_names(tmp_path: Path, llama: Loaded) -> None:
    save_eagle3(tmp_path)
    states = torch.randn(3, 32)
    expected = eagle3(tmp_path, llama)
    change_file(tmp_path / WEIGHTS, rename_layer)
    found = eagle3(tmp_path, llama)
    for name, weight in expected.module.midlayer.state_dict().items():
        torch.testing.assert_close(found.module.midlayer.state_dict()[name], weight)
    torch.testing.assert_close(found.logits(states), expected.logits(states))


@pytest.mark.parametrize(
    ("layout", "change", "message"),
    [
        (
            "deepseek", lambda own: own.pop("model.layers.2.eh_proj.weight"),
            r"no weights for model\.layers\.2\.eh_proj\.weight",
        ),
        (
            "deepseek", lambda own: own.pop("model.layers.2.shared_head.norm.weight"),
            r"no weights for model\.layers\.2\.shared_head\.norm\.weight",
        ),
        (
            "deepseek", lambda own: own.pop("model.layers.2.self_attn.o_proj.weight"),
            r"no weights for model\.layers\.2\.self_attn\.o_proj\.weight",
        ),
        (
            "deepseek", lambda own: own.update({"model.layers.2.enorm.weight": torch.ones(31)}),
            r"model\.layers\.2\.enorm\.weight has the shape \[31\]; expected is \[32\]",
        ),
        (
            "deepseek", lambda own: own.update({"model.layers.2.other.weight": torch.ones(31)}),
            r"unknown weights: model\.layers\.2\.other\.weight",
        ),
        (
            "deepseek",
            lambda own: own.update({"model.layers.2.mlp.experts.1.up_proj.weight": torch.ones(23, 32)}),
            r"mlp\.experts\.1\.up_proj\.weight has the shape \[23, 32\]; that of another expert is \[24, 32\]",
        ),
        (
            "deepseek", lambda own: own.pop("model.layers.2.mlp.experts.3.down_proj.weight"),
            r"no weights for model\.layers\.2\.mlp\.experts\.3\.down_proj\.weight",
        ),
        (
            "deepseek", lambda own: [own.pop(name) for name in [*own] if "layers.2.mlp.experts.3." in name],
            r"layers\.2\.mlp\.experts\.down_proj has the shape \[3, 32, 24\]; expected is \[4, 32, 24\]",
        ),
        (
            "mimo", lambda own: own.pop("model.mtp_layers.0.input_proj.weight"),
            r"no weights for model\.mtp_layers\.0\.input_proj\.weight",
        ),
        (
            "mimo", lambda own: own.update({"model.mtp_layers.0.mlp.up_proj.weight": torch.ones(2, 32)}),
            r"model\.mtp_layers\.0\.mlp\.up_proj\.weight has the shape \[2, 32\]",
        ),
        (
            "mimo", lambda own: [own.pop(name) for name in [*own] if "mtp_layers" in name],
            r"none: the name of no tensor starts with one of model\.layers\.2\., model\.mtp_layers\.0\., mtp\.",
        ),
    ],
)  # fmt: skip
def test_mtp_module_with_other_tensors_is_refused_by_name(
    mtp_targets: dict[str, MtpTarget], layout: str, change: Change, message: str
) -> None:
    folder, whole, loaded = mtp_targets[layout]
    (folder / WEIGHTS).write_bytes(whole)
    change_file(folder / WEIGHTS, change)
    with pytest.raises(
        ValueError, match=f"the multi-token prediction module in {folder} can't be loaded: .*{message}"
    ):
        mtp(loaded)


def test_layer_of_the_target_is_no_mtp_module(tmp_path: Path) -> None:
    save_mtp(tmp_path, "deepseek")
    loaded = load_target(tmp_path, hf_overrides={"num_hidden_layers": 1})
    with pytest.raises(ValueError, match=r"no weights for model\.layers\.1\.eh_proj\.weight"):
        mtp(loaded)
