"""The passes over a model: replacements, their verification, and the loading of weights."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tiers import tiered
from tiny_models import TINY, tiny_model
from torch import Tensor
from transformers import PreTrainedModel

from engine_server import EngineArgs
from engine_server.modeling.attention.interface import UnsupportedModelError
from engine_server.modeling.device.communicator import Communicator
from engine_server.modeling.layers.kernel_sets.plain import CPU, NO_KERNELS, rms_norm
from engine_server.modeling.layers.linear import Linear
from engine_server.modeling.loader import model_loader
from engine_server.modeling.loader.passes import LoadPlan, replace_modules, verified_choices
from engine_server.modeling.loader.sample import num_layers, sample_copy
from engine_server.modeling.platform.cpu import CpuPlatform
from engine_server.modeling.replacements.decoder_layers import DECODER_LAYERS
from engine_server.modeling.replacements.gates import GATES
from engine_server.modeling.replacements.norms import NORMS
from engine_server.modeling.replacements.rotations import ROTATIONS

pytestmark = pytest.mark.transformers

SIZES = TINY | {"vocab_size": 64, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 1}
MOE = {"num_local_experts": 4, "num_experts_per_tok": 2}


def reports(model: PreTrainedModel) -> dict[str, str]:
    """Return the lines of the passes' reports, by the names of the passes."""
    platform = CpuPlatform()
    plan = LoadPlan(platform, Communicator(), False, verified_choices(model, platform))
    lines = [str(report) for report in replace_modules(model, plan)]
    return dict(line.split(": ", 1) for line in lines)


def load(folder: Path, **options: Any) -> PreTrainedModel:
    config = EngineArgs(
        model=str(folder), dtype="float32", skip_tokenizer_init=True, **options
    ).create_engine_config()
    return model_loader.load_model(config.model_config, config.load_config, CpuPlatform(), Communicator())


def test_pass_reports_name_the_replaced_modules() -> None:
    found = reports(tiny_model("LlamaForCausalLM", **SIZES))
    assert found["linear layers"] == "15 nn.Linear -> Linear"
    assert found["token embedding"] == "1 nn.Embedding -> Embedding"
    assert found["fuse query, key and value"] == "2 LlamaAttention -> FusedLinear"
    assert found["fuse gate and up"] == "2 LlamaMLP -> GatedMLP"
    assert found["norms"] == "5 LlamaRMSNorm -> FusedRMSNorm"
    assert found["decoder layers"] == "2 LlamaDecoderLayer -> fused_layer"


def test_reports_of_a_mixture_of_experts_name_its_experts() -> None:
    found = reports(tiny_model("MixtralForCausalLM", **SIZES, **MOE))
    assert found["experts"] == "2 MixtralExperts -> RoutedExperts"
    assert found["gates"] == "2 MixtralExperts -> a gate kernel"


def test_device_that_runs_ahead_of_the_host_groups_the_tokens_of_experts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(CpuPlatform, "module_kernels", NO_KERNELS)
    found = reports(tiny_model("MixtralForCausalLM", **SIZES, **MOE))
    assert found["experts"] == "2 MixtralExperts -> GroupedExperts"


def test_reports_give_the_reason_for_modules_that_are_left() -> None:
    found = reports(tiny_model("GraniteForCausalLM", **SIZES, residual_multiplier=0.5))
    assert found["decoder layers"] == (
        "nothing replaced; left: 2 GraniteDecoderLayer (computes something else)"
    )


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ("PhimoeForCausalLM", MOE | {"sliding_window": 16, "head_dim": 8}),
        ("MoshiForCausalLM", {"sliding_window": 16, "head_dim": 8, "ffn_dim": 64}),
    ],
)
def test_model_that_passes_no_window_to_attention_is_refused_by_name(
    tmp_path: Path, model: str, settings: dict[str, Any]
) -> None:
    save_config(tmp_path, model, settings)
    with pytest.raises(UnsupportedModelError, match=rf"^{model}.*window"):
        load(tmp_path, load_format="dummy")


def test_window_beyond_the_context_is_not_compared(tmp_path: Path) -> None:
    save_config(tmp_path, "PhimoeForCausalLM", MOE | {"sliding_window": 64, "head_dim": 8})
    load(tmp_path, load_format="dummy")


@pytest.mark.parametrize("window", tiered([3, 4, 16, 1000], 3, 16, more=[4, 1000]))
@pytest.mark.parametrize(
    "model",
    tiered(
        ["MistralForCausalLM", "Starcoder2ForCausalLM"], "MistralForCausalLM", more=["Starcoder2ForCausalLM"]
    ),
)
def test_model_that_passes_its_window_to_attention_is_loaded(tmp_path: Path, model: str, window: int) -> None:
    save_config(tmp_path, model, {"sliding_window": window})
    load(tmp_path, load_format="dummy")


@pytest.mark.parametrize("error", [TypeError, RuntimeError, AttributeError, AssertionError])
def test_model_that_cannot_be_built_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def fail(self: object, *given: object) -> None:
        raise error("no such size")

    save_config(tmp_path, "LlamaForCausalLM", {})
    monkeypatch.setattr(transformers.LlamaForCausalLM, "__init__", fail)
    with pytest.raises(
        UnsupportedModelError, match=f"^LlamaForCausalLM can't be built.*{error.__name__}: no such"
    ):
        load(tmp_path, load_format="dummy")


def save_config(folder: Path, model: str, settings: dict[str, Any]) -> None:
    config = getattr(transformers, model).config_class(**SIZES, **settings)
    config.architectures = [model]
    config.save_pretrained(folder)


def test_loading_logs_a_line_for_each_pass(tiny_llama: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger=model_loader.__name__):
        load(tiny_llama)
    assert "norms: 5 LlamaRMSNorm -> FusedRMSNorm" in caplog.messages
    assert "tie: nothing replaced" in caplog.messages


def test_kernel_that_changes_the_output_of_the_copy_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def wrong_with_residual(
        x: Tensor, weight: Tensor, eps: float, offset: float, residual: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Compute the correct result for a norm alone, and a wrong one with a residual."""
        total, normed = rms_norm(x, weight, eps, offset, residual)
        return total, normed if len(x.shape) == 3 and x.shape[1] == 3 else normed * 2

    monkeypatch.setattr(
        CpuPlatform, "module_kernels", property(lambda _: CPU._replace(rms_norm=wrong_with_residual))
    )
    choices = verified_choices(tiny_model("LlamaForCausalLM", **SIZES), CpuPlatform())
    assert not choices[NORMS] and not choices[DECODER_LAYERS]
    assert choices[GATES] and choices[ROTATIONS]
    assert (
        "norms: nothing is replaced, since it would change the output of the two-layer copy"
        in caplog.messages
    )


def test_kernel_that_fails_on_its_sample_is_not_used_and_the_others_are(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("no such size")

    monkeypatch.setattr(CpuPlatform, "module_kernels", property(lambda _: CPU._replace(rms_norm=fail)))
    choices = verified_choices(tiny_model("LlamaForCausalLM", **SIZES), CpuPlatform())
    assert not choices[NORMS] and not choices[DECODER_LAYERS]
    assert choices[GATES] and choices[ROTATIONS]
    assert "norms: nothing is replaced, since that fails: no such size" in caplog.messages


def test_kernel_that_triton_cannot_compile_is_not_used_and_its_error_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    errors = pytest.importorskip("triton.errors")

    def fails_with_residual(
        x: Tensor, weight: Tensor, eps: float, offset: float, residual: Tensor | None
    ) -> Any:
        if residual is not None:
            raise errors.TritonError("out of resource: shared memory")
        return rms_norm(x, weight, eps, offset, residual)

    monkeypatch.setattr(
        CpuPlatform, "module_kernels", property(lambda _: CPU._replace(rms_norm=fails_with_residual))
    )
    choices = verified_choices(tiny_model("LlamaForCausalLM", **SIZES), CpuPlatform())
    assert choices[NORMS] and not choices[DECODER_LAYERS]
    failure = "a replacement fails on the two-layer copy: out of resource: shared memory"
    assert (logging.WARNING, failure) in [(record.levelno, record.getMessage()) for record in caplog.records]


def test_model_whose_copy_does_not_call_attention_is_refused() -> None:
    model = tiny_model("XGLMForCausalLM", **SIZES)
    with pytest.raises(UnsupportedModelError, match="XGLMForCausalLM has 2 layers, of which 0 call"):
        verified_choices(model, CpuPlatform())


@pytest.mark.parametrize(("dense_layers", "expected"), [(0, 2), (1, 2), (3, 4)])
def test_copy_has_as_many_layers_as_show_each_kind(dense_layers: int, expected: int) -> None:
    sizes = SIZES | {
        "num_hidden_layers": 6, "num_key_value_heads": 4, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8, "v_head_dim": 12, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2,
        "moe_intermediate_size": 24, "topk_group": 1, "head_dim": 8, "first_k_dense_replace": dense_layers,
    }  # fmt: skip
    assert num_layers(tiny_model("DeepseekV3ForCausalLM", **sizes)) == expected


def test_copy_of_a_large_model_takes_little_memory() -> None:
    sizes = SIZES | {"hidden_size": 4096, "intermediate_size": 14336, "vocab_size": 128000, "head_dim": 128}
    kind = transformers.MixtralForCausalLM
    with torch.device("meta"):
        model = kind._from_config(kind.config_class(**sizes, num_local_experts=64))
    copy = sample_copy(model, torch.device("cpu"))
    held = sum(parameter.numel() for parameter in copy.parameters() if not parameter.is_meta)
    assert held < 1_000_000


def test_layers_take_over_their_weights_while_the_checkpoint_is_read(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settled = model_loader.settle
    ready: list[bool] = []

    def settle(model: PreTrainedModel) -> Any:
        ready.extend(
            layer.format is not None or not layer.fused.lacks(layer.place)
            for layer in model.modules()
            if isinstance(layer, Linear)
        )
        return settled(model)

    monkeypatch.setattr(model_loader, "settle", settle)
    load(tiny_llama)
    assert len(ready) == 15 and all(ready)


def test_model_has_the_class_that_transformers_gives_it(tiny_llama: Path) -> None:
    assert type(load(tiny_llama)) is transformers.LlamaForCausalLM


@pytest.mark.parametrize("held", ["model.embed_tokens.weight", "lm_head.weight"])
def test_tied_weights_load_from_whichever_the_checkpoint_holds(tmp_path: Path, held: str) -> None:
    original = tiny_model("LlamaForCausalLM", **SIZES | {"tie_word_embeddings": True})
    original.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights[held] = weights.pop("model.embed_tokens.weight")
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    model = load(tmp_path)
    assert model.lm_head.format is model.model.embed_tokens.format
    tokens = torch.tensor([[3, 40]])
    torch.testing.assert_close(model.model.embed_tokens(tokens), original.model.embed_tokens(tokens))
    values = torch.randn(2, SIZES["hidden_size"])
    torch.testing.assert_close(model.lm_head(values), original.lm_head(values))


def test_head_that_is_not_in_the_checkpoint_is_initialized_as_transformers_does(tmp_path: Path) -> None:
    tiny_model("LlamaForCausalLM", **SIZES).save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    labels = {str(number): f"label {number}" for number in range(3)}
    settings |= {"architectures": ["LlamaForSequenceClassification"], "id2label": labels}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    model = load(tmp_path, runner="pooling")
    weight = model.score.format.apply(torch.eye(SIZES["hidden_size"]))
    assert weight.shape == (32, 3)
    assert 0.2 < weight.std() < 0.8  # initializer_range is 0.4
