"""For each setting of a folder that the product reads, two values with which it computes something else."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from adapter_folders import write
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaConfig

from engine_server import EngineArgs
from engine_server.model_sources import settings_tables as tables
from engine_server.modeling.adapters.peft_folder import AdapterError, read_low_rank_adapter
from engine_server.modeling.adapters.prompt_folder import read_prompt_adapter
from engine_server.modeling.formats.checkpoints.checkpoint import QuantizedCheckpoint

# Makes a folder in which a setting has a value, and returns what is computed of it, or the words of a refusal.
Result = Callable[[Path, Any], Any]


class Change(NamedTuple):
    values: tuple[Any, Any]
    result: Result


def llama(folder: Path) -> Path:
    """Write the config of a small model into a new folder, and a file without any of its weights."""
    LlamaConfig(
        vocab_size=96, hidden_size=32, intermediate_size=48, num_attention_heads=4, num_hidden_layers=1,
        architectures=["LlamaForCausalLM"],
    ).save_pretrained(folder)  # fmt: skip
    save_file({"none": torch.zeros(1)}, folder / "model.safetensors")
    return folder


def generation(name: str, folder: Path, value: Any) -> Any:
    (llama(folder) / "generation_config.json").write_text(json.dumps({name: value}))
    model = EngineArgs(model=str(folder)).create_engine_config().model_config
    return model.get_diff_sampling_param(), model.eos_token_ids


def words(*shape: int) -> Tensor:
    return torch.randint(-(2**31), 2**31 - 1, shape, generator=torch.Generator().manual_seed(0)).int()


def scales(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(0)) + 0.5


# One weight of 32 outputs and 64 inputs in groups of 16, in each form, and its settings.
TENSORS: dict[str, dict[str, Tensor]] = {
    "gptq": {"qweight": words(8, 32), "qzeros": words(4, 4), "scales": scales(4, 32)},
    "awq": {"qweight": words(64, 4), "qzeros": words(4, 4), "scales": scales(4, 32)},
    "fp8": {"weight": scales(32, 64).to(torch.float8_e4m3fn), "weight_scale_inv": scales(2, 4)},
    "fbgemm_fp8": {"weight": scales(32, 64).to(torch.float8_e4m3fn), "weight_scale": scales(32, 1)},
    "mxfp4": {
        "weight_blocks": words(2, 32, 2, 16).to(torch.uint8), "weight_scales": words(2, 32, 2).to(torch.uint8) // 2
    },
    "modelopt": {
        "weight": words(32, 32).to(torch.uint8), "weight_scale": scales(32, 4).to(torch.float8_e4m3fn),
        "weight_scale_2": torch.ones(()),
    },
    "compressed-tensors": {
        "weight_packed": words(32, 8), "weight_scale": scales(32, 4), "weight_shape": torch.tensor([32, 64])
    },
}  # fmt: skip
GROUP = {"targets": ["Linear"], "weights": {"num_bits": 4, "group_size": 16}}
SETTINGS: dict[str, dict[str, Any]] = {
    "gptq": {"bits": 4, "group_size": 16},
    "awq": {"bits": 4, "group_size": 16},
    "fp8": {"weight_block_size": [16, 16]},
    "fbgemm_fp8": {},
    "mxfp4": {},
    "modelopt": {"quant_algo": "NVFP4", "group_size": 16},
    "compressed-tensors": {"format": "pack-quantized", "config_groups": {"group": GROUP}},
}


def read_weight(folder: Path, method: str, settings: dict[str, Any]) -> Any:
    """Return the weight of `method` as it is read with settings, or the words of a refusal."""
    folder.mkdir()
    save_file(
        {f"layer.{name}": tensor for name, tensor in TENSORS[method].items()}, folder / "model.safetensors"
    )
    try:
        checkpoint = QuantizedCheckpoint(folder, settings, f"quantization_config in {folder}/config.json")
        checkpoint.state(torch.float32, dense=True)
        return checkpoint.tensors["layer.weight"][...].tolist()
    except ValueError as error:
        return str(error).replace(str(folder), "FOLDER")


def quantized(method: str, name: str, without: tuple[str, ...], folder: Path, value: Any) -> Any:
    kept = {key: given for key, given in SETTINGS[method].items() if key not in without}
    return read_weight(folder, method, {"quant_method": method} | kept | {name: value})


def of_method(method: str, *without: str, **values: tuple[Any, Any]) -> dict[str, Change]:
    """Return changes of a method's settings; keyed by name, two values. without: settings that are left out."""
    return {name: Change(pair, partial(quantized, method, name, without)) for name, pair in values.items()}


def of_group(name: str, folder: Path, value: Any) -> Any:
    return quantized("compressed-tensors", "config_groups", (), folder, {"group": GROUP | {name: value}})


def of_weights(name: str, folder: Path, value: Any) -> Any:
    return of_group("weights", folder, {"num_bits": 4, "group_size": 16} | {name: value})


def in_blocks(folder: Path, value: Any) -> Any:
    """Read a weight of float8 that compressed-tensors stores in blocks."""
    weights = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": value}
    group = {"targets": ["Linear"], "weights": weights}
    settings = {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {"g": group},
    }
    tensors = TENSORS["fp8"]
    folder.mkdir()
    named = {"layer.weight": tensors["weight"], "layer.weight_scale": tensors["weight_scale_inv"]}
    save_file(named, folder / "model.safetensors")
    try:
        return len(QuantizedCheckpoint(folder, settings, "config.json").weights)
    except ValueError as error:
        return str(error)


LORA_TENSORS = {
    "base_model.model.q_proj.lora_A.weight": torch.ones(2, 6), "base_model.model.q_proj.lora_B.weight": torch.ones(8, 2)
}  # fmt: skip
EXPERT_TENSORS = {
    "base_model.model.experts.lora_A.weight": torch.ones(4, 6),
    "base_model.model.experts.lora_B.weight": torch.ones(8, 4),
}  # fmt: skip


def read_lora(folder: Path, settings: dict[str, Any], tensors: dict[str, Tensor] = LORA_TENSORS) -> Any:
    """Return the updates of an adapter of rank 2, or the words of a refusal."""
    folder.mkdir()
    write(folder, {"peft_type": "LORA", "r": 2, "lora_alpha": 4} | settings, tensors)
    try:
        adapter = read_low_rank_adapter(folder, 4, 1 << 20, {"experts.down_proj": 2})
    except AdapterError as error:
        return str(error)
    return {name: update.b.tolist() for name, update in adapter.pairs.items()}


def lora(name: str, folder: Path, value: Any) -> Any:
    return read_lora(folder, {name: value}, EXPERT_TENSORS if name == "target_parameters" else LORA_TENSORS)


def read_virtual_tokens(folder: Path, settings: dict[str, Any]) -> Any:
    """Return the embeddings of three virtual tokens, or the words of a refusal."""
    folder.mkdir()
    write(folder, {"num_virtual_tokens": 3} | settings, {"prompt_embeddings": torch.ones(3, 8)})
    try:
        return read_prompt_adapter(folder, 3, 8).embeddings.tolist()
    except AdapterError as error:
        return str(error)


def virtual_tokens(kind: str, name: str, folder: Path, value: Any) -> Any:
    return read_virtual_tokens(folder, {"peft_type": kind} | {name: value})


def of_virtual_tokens(kind: str) -> dict[str, Change]:
    changes = {"peft_type": (kind, "PREFIX_TUNING"), "num_virtual_tokens": (3, 4)}
    return {name: Change(values, partial(virtual_tokens, kind, name)) for name, values in changes.items()}


def transforms(location: str) -> dict[str, Any]:
    """Return transforms as SpinQuant has them."""
    apply = [{"targets": ["Linear"], "location": location}]
    return {"config_groups": {"R4": {"type": "hadamard", "apply": apply}}}


MODULE = "sentence_transformers.models."
DENSE = {
    "in_features": 32, "out_features": 16, "bias": True, "use_residual": False,
    "activation_function": "torch.nn.modules.activation.Tanh",
}  # fmt: skip
# The modules of two kinds of models, with their settings.
EMBEDDING: dict[str, dict[str, Any]] = {
    "Pooling": {"pooling_mode": "mean", "embedding_dimension": 32}, "Dense": DENSE, "Normalize": {},
}  # fmt: skip
RERANKER: dict[str, dict[str, Any]] = {"LogitScore": {"true_token_id": 5, "false_token_id": 6}}


def read_modules(folder: Path, modules: dict[str, dict[str, Any]], /, **files: Any) -> Any:
    """Return what is read of a pooling model's folder, or the words of a refusal. files: contents, by name."""
    llama(folder)
    entries = [{"idx": 0, "name": "0", "path": "", "type": f"{MODULE}Transformer"}]
    for number, (name, settings) in enumerate(modules.items(), 1):
        path = f"{number}_{name}"
        (folder / path).mkdir()
        (folder / path / "config.json").write_text(json.dumps(settings))
        entries.append({"idx": number, "name": str(number), "path": path, "type": f"{MODULE}{name}"})
    for name, content in ({"modules": entries} | files).items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    try:
        model = EngineArgs(model=str(folder), skip_tokenizer_init=True).create_engine_config().model_config
    except ValueError as error:
        return str(error).replace(str(folder), "FOLDER")
    return model.pooling, model.max_model_len


def of_file(file: str, modules: dict[str, dict[str, Any]], name: str, folder: Path, value: Any) -> Any:
    common = {"prompts": {"query": "Query: "}} if name == "default_prompt_name" else {}
    return read_modules(folder, modules, **{file: common | {name: value}})


def of_module(kind: str, name: str, folder: Path, value: Any) -> Any:
    modules = RERANKER if kind in RERANKER else EMBEDDING
    own = modules[kind]
    if name.startswith("pooling_mode_"):  # beside another, since the mean is the default
        own = {"pooling_mode_cls_token": name != "pooling_mode_cls_token"}
    files = (
        {"config_sentence_transformers": {"prompts": {"query": "Query: "}}}
        if name == "include_prompt"
        else {}
    )
    return read_modules(folder, modules | {kind: own | {name: value}}, **files)


def of_entry(name: str, folder: Path, value: Any) -> Any:
    entries = [
        {"path": "", "type": f"{MODULE}Transformer"}, {"path": "1_Pooling", "type": f"{MODULE}Pooling"} | {name: value}
    ]  # fmt: skip
    return read_modules(folder, {"Pooling": {"pooling_mode": "cls"}, "Other": {}}, modules=entries)


# By the names of formats and settings.
READ: dict[str, dict[str, Change]] = {
    tables.GENERATION_CONFIG.name: {
        name: Change(values, partial(generation, name))
        for name, values in {
            "temperature": (0.5, 0.6), "top_k": (5, 6), "top_p": (0.5, 0.6), "min_p": (0.1, 0.2),
            "repetition_penalty": (1.1, 1.2), "max_new_tokens": (5, 6), "suppress_tokens": ([5], [6]),
            "eos_token_id": (5, [5, 6]),
        }.items()
    },
    tables.GPTQ.name: of_method(
        "gptq", quant_method=("gptq", "awq"), bits=(4, 8), group_size=(16, 32), format=("gptq", "gptq_v2"),
        checkpoint_format=("GPTQ", "gptq_v2"),
    ),
    tables.AWQ.name: of_method(
        "awq", quant_method=("awq", "gptq"), bits=(4, 8), group_size=(16, 32), format=("gemm", "gemv"),
        version=("GEMM", "gemv"), backend=("auto", "llm-awq"),
    ) | of_method("awq", "bits", w_bit=(4, 8)) | of_method("awq", "group_size", q_group_size=(16, 32)),
    tables.FP8.name: of_method("fp8", quant_method=("fp8", "awq"), weight_block_size=([16, 16], [16, 32])),
    tables.FBGEMM.name: of_method("fbgemm_fp8", quant_method=("fbgemm_fp8", "awq")),
    tables.MXFP4.name: of_method("mxfp4", quant_method=("mxfp4", "awq")),
    tables.MODELOPT.name: of_method(
        "modelopt", quant_method=("modelopt", "awq"), quant_algo=("NVFP4", "FP8"), group_size=(16, 32)
    ),
    tables.COMPRESSED_TENSORS.name: of_method(
        "compressed-tensors", quant_method=("compressed-tensors", "gptq"),
        format=("pack-quantized", "marlin-24"), config_groups=({"g": GROUP}, {"g": {"targets": []}}),
        sparsity_config=({"format": "dense"}, {"format": "sparse-24-bitmask"}),
        transform_config=(transforms("weight_input"), transforms("input")),
    ),
    tables.SCHEME.name: {
        "format": Change(("pack-quantized", "nvfp4-pack-quantized"), partial(of_group, "format")),
        "weights": Change((GROUP["weights"], None), partial(of_group, "weights")),
    },
    tables.WEIGHTS.name: {
        name: Change(values, partial(of_weights, name))
        for name, values in {
            "num_bits": (4, 8), "type": ("int", "float"), "symmetric": (True, False), "group_size": (16, 32)
        }.items()
    } | {"block_structure": Change(([16, 16], [32, 16]), in_blocks)},
    tables.UNUSED_ARGUMENTS.name: {},
    tables.LORA.name: {
        name: Change(values, partial(lora, name))
        for name, values in {
            "peft_type": ("LORA", "LOHA"), "r": (2, 3), "lora_alpha": (4, 5), "use_rslora": (False, True),
            "rank_pattern": ({}, {"q_proj": 3}), "alpha_pattern": ({}, {"q_proj": 5}),
            "target_parameters": (["experts.down_proj"], ["experts.gate_up_proj"]),
            "init_lora_weights": (True, "pissa"),
        }.items()
    },
    tables.PROMPT_TUNING.name: of_virtual_tokens("PROMPT_TUNING"),
    tables.P_TUNING.name: of_virtual_tokens("P_TUNING"),
    tables.ENTRY.name: {
        "type": Change((f"{MODULE}Pooling", f"{MODULE}WeightedLayerPooling"), partial(of_entry, "type")),
        "path": Change(("1_Pooling", "2_Other"), partial(of_entry, "path")),
    },
    tables.SENTENCE_TRANSFORMERS.name: {
        name: Change(values, partial(of_file, "config_sentence_transformers", modules, name))
        for name, (values, modules) in {
            "model_type": (("SentenceTransformer", "SparseEncoder"), EMBEDDING),
            "prompts": (({"a": "A: "}, {"a": "B: "}), EMBEDDING),
            "default_prompt_name": ((None, "query"), EMBEDDING),
            "truncate_dim": ((8, 9), EMBEDDING),
            "activation_fn": (("torch.nn.Sigmoid", "torch.nn.Identity"), RERANKER),
        }.items()
    },
    tables.ENCODER.name: {
        name: Change(values, partial(of_file, "sentence_bert_config", modules, name))
        for name, (values, modules) in {
            "processing_kwargs": (({}, {"chat_template": {"add_generation_prompt": True}}), RERANKER),
            "max_seq_length": ((16, 17), EMBEDDING),
            "do_lower_case": ((False, True), EMBEDDING),
        }.items()
    },
    tables.POOLING.name: {
        name: Change(values, partial(of_module, "Pooling", name))
        for name, values in {
            "pooling_mode": ("mean", ["cls"]), "include_prompt": (True, False),
            "pooling_mode_cls_token": (True, False), "pooling_mode_max_tokens": (False, True),
            "pooling_mode_mean_tokens": (False, True), "pooling_mode_mean_sqrt_len_tokens": (False, True),
            "pooling_mode_weightedmean_tokens": (False, True), "pooling_mode_lasttoken": (False, True),
        }.items()
    },
    tables.NORMALIZE.name: {},
    tables.DENSE.name: {
        name: Change(values, partial(of_module, "Dense", name))
        for name, values in {
            "in_features": (32, 31), "out_features": (16, 17), "bias": (True, False), "use_residual": (False, True),
            "activation_function": ("torch.nn.modules.activation.Tanh", "torch.nn.modules.activation.ReLU"),
        }.items()
    },
    tables.LOGIT_SCORE.name: {
        name: Change(values, partial(of_module, "LogitScore", name))
        for name, values in {"true_token_id": (5, 7), "false_token_id": (6, None)}.items()
    },
}  # fmt: skip
