"""Tiny targets with random weights, and draft heads for them, as files in their published layouts."""

import json
from pathlib import Path
from typing import Any

import torch
from architectures import MLA, SIZES
from safetensors.torch import load_file, save_file
from tiny_models import tiny_model
from torch import Tensor

WEIGHTS = "model.safetensors"
VOCABULARY, HIDDEN = SIZES["vocab_size"], SIZES["hidden_size"]
DRAFT_VOCABULARY = 40
EAGLE3: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "vocab_size": VOCABULARY,
    "draft_vocab_size": DRAFT_VOCABULARY,
    "tie_word_embeddings": False,
}
# For each layout the target's class and settings, and the start of the names of the module and of its decoder layer,
# with {} for the number of the target's layers.
MTP: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "deepseek": ("DeepseekV3ForCausalLM", {**MLA, "q_lora_rank": 16}, "model.layers.{}.", "model.layers.{}."),
    "mimo": ("Qwen2ForCausalLM", {}, "model.mtp_layers.0.", "model.mtp_layers.0."),
    "qwen": (
        "Qwen3NextForCausalLM",
        {
            "head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 24,
        },
        "mtp.", "mtp.layers.0.",
    ),
}  # fmt: skip
# The names of the embedding's norm, the state's norm, the projection and the last norm.
PARTS = {
    "deepseek": ("enorm", "hnorm", "eh_proj", "shared_head.norm"),
    "mimo": ("token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm"),
    "qwen": ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm"),
}
TARGET_LAYERS = 2
# Rows and columns of a float8 weight that share a scale.
BLOCK = 8


def save_target(folder: Path, num_layers: int = 7, model: str = "LlamaForCausalLM", **settings: Any) -> None:
    """Save a model, by default with as many layers as the default inputs of an EAGLE-3 head need."""
    tiny_model(model, **SIZES | {"num_hidden_layers": num_layers} | settings).save_pretrained(folder)


# The settings of a head in Speculators' form that are beside its layer's.
OF_SPECULATOR = {
    "draft_vocab_size", "target_hidden_size", "norm_before_residual", "eagle_aux_hidden_state_layer_ids",
}  # fmt: skip


def save_speculator(folder: Path, **settings: Any) -> dict[str, Tensor]:
    """Save an EAGLE-3 head in the form of Speculators; return its tensors, with the names of the other form."""
    tensors = save_eagle3(folder, **settings)
    content = json.loads((folder / "config.json").read_text())
    config = {name: content.pop(name) for name in OF_SPECULATOR & content.keys()}
    config |= {"architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3"}
    (folder / "config.json").write_text(json.dumps(config | {"transformer_layer_config": content}))
    renamed = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in tensors.items()}
    save_file(renamed, folder / WEIGHTS)
    return tensors


def save_eagle3(folder: Path, embedding: bool = False, **settings: Any) -> dict[str, Tensor]:
    """Save an EAGLE-3 head, and return its tensors. None as a setting: config.json has none."""
    config = EAGLE3 | settings
    config = {name: value for name, value in config.items() if value is not None}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    tensors = eagle3_tensors(config, embedding)
    save_file(tensors, folder / WEIGHTS)
    return tensors


def eagle3_tensors(config: dict[str, Any], embedding: bool) -> dict[str, Tensor]:
    hidden, inner, vocabulary = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    keys = hidden * config["num_key_value_heads"] // config["num_attention_heads"]
    drafts = config.get("draft_vocab_size", vocabulary)
    shapes = {
        "fc": (hidden, 3 * config.get("target_hidden_size", hidden)),
        "midlayer.self_attn.q_proj": (hidden, 2 * hidden),
        "midlayer.self_attn.k_proj": (keys, 2 * hidden),
        "midlayer.self_attn.v_proj": (keys, 2 * hidden),
        "midlayer.self_attn.o_proj": (hidden, hidden),
        "midlayer.mlp.gate_proj": (inner, hidden),
        "midlayer.mlp.up_proj": (inner, hidden),
        "midlayer.mlp.down_proj": (hidden, inner),
        "midlayer.input_layernorm": (hidden,),
        "midlayer.hidden_norm": (hidden,),
        "midlayer.post_attention_layernorm": (hidden,),
        "norm": (hidden,),
        "lm_head": (drafts, hidden),
    }
    if embedding:
        shapes["embed_tokens"] = (vocabulary, hidden)
    torch.manual_seed(1)
    tensors = {
        f"{name}.weight": torch.rand(shape) + 0.5 if len(shape) == 1 else torch.randn(shape) * 0.3
        for name, shape in shapes.items()
    }
    if drafts == vocabulary:
        return tensors
    tokens = torch.randperm(vocabulary)[:drafts].sort().values
    flags = torch.zeros(vocabulary, dtype=torch.bool)
    flags[tokens] = True
    return tensors | {"d2t": tokens - torch.arange(drafts), "t2d": flags}


def save_mtp(folder: Path, layout: str) -> dict[str, Tensor]:
    """Save a target of two layers with one multi-token prediction module, and return all tensors.

    Its decoder layer is the third of a longer target. Qwen's, which has no attention in most layers, has it in all.
    """
    model, settings, start, layer = MTP[layout]
    count = TARGET_LAYERS
    sizes = SIZES | settings | {"num_hidden_layers": count + 1}
    if layout == "qwen":
        sizes["layer_types"] = ["full_attention"] * (count + 1)
    tiny_model(model, **sizes).save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config["num_hidden_layers"] = count
    if "layer_types" in config:
        config["layer_types"] = config["layer_types"][:count]
    (folder / "config.json").write_text(json.dumps(config))
    start, layer = start.format(count), layer.format(count)
    last = f"model.layers.{count}."
    tensors = {
        layer + name.removeprefix(last) if name.startswith(last) else name: tensor
        for name, tensor in load_file(folder / WEIGHTS).items()
    }
    torch.manual_seed(1)
    *norms, projection, last_norm = PARTS[layout]
    for norm in (*norms, last_norm):
        tensors[f"{start}{norm}.weight"] = torch.rand(HIDDEN) + 0.5
    tensors[f"{start}{projection}.weight"] = torch.randn(HIDDEN, 2 * HIDDEN) * 0.3
    if layout == "deepseek":  # copies of the target's
        tensors[f"{start}embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
        tensors[f"{start}shared_head.head.weight"] = tensors["lm_head.weight"].clone()
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})
    return tensors


def quantise(folder: Path, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Replace the weights of projections by float8 with a scale for each block, and return them dequantised."""
    stored, dense = dict(tensors), dict(tensors)
    for name, weight in tensors.items():
        if "_proj" not in name or "eh_proj" in name or weight.ndim != 2:
            continue
        rows, columns = (-(-size // BLOCK) for size in weight.shape)
        scales = torch.rand(rows, columns) / 100 + 0.01
        spread = scales.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)[
            : len(weight), : weight.shape[1]
        ]
        stored[name] = (weight / spread).to(torch.float8_e4m3fn)
        stored[f"{name}_scale_inv"] = scales
        dense[name] = stored[name].float() * spread
    save_file(stored, folder / WEIGHTS, {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK]}
    (folder / "config.json").write_text(json.dumps(config))
    return dense
