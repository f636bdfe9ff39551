"""Tiny random models with recurrent layers, and what transformers computes for them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from tiny_models import TINY

from engine_server import EngineArgs, LLMEngine, SamplingParams
from engine_server.core.scheduling.integrity import check_integrity
from engine_server.core.scheduling.scheduler import Scheduler

DELTA = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
    "layer_types": ["linear_attention", "linear_attention", "full_attention"], "num_hidden_layers": 3,
}  # fmt: skip
MAMBA = {
    "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_expand": 2, "mamba_d_state": 16, "mamba_n_groups": 2,
    "mamba_chunk_size": 8,
}  # fmt: skip
EXPERTS = {
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16,
}  # fmt: skip
# States that the CPU's kernels do not compute.
OF_HALF_VECTORS = {"linear_key_head_dim": 8, "linear_value_head_dim": 8}
CONVOLUTIONS = {"layer_types": ["conv", "full_attention", "conv"], "num_hidden_layers": 3}
# Settings by transformers' class.
FAMILIES: dict[str, dict[str, Any]] = {
    "Qwen3_5ForCausalLM": DELTA | {"head_dim": 8},
    "Lfm2ForCausalLM": CONVOLUTIONS,
    "GraniteMoeHybridForCausalLM": MAMBA
    | {
        "layer_types": ["linear_attention", "full_attention", "linear_attention"], "num_hidden_layers": 3,
        "shared_intermediate_size": 32, "num_local_experts": 0, "num_experts_per_tok": 0,
    },
    "NemotronHForCausalLM": {
        "layers_block_type": ["linear_attention", "mlp", "full_attention", "linear_attention"], "head_dim": 8,
        "mamba_num_heads": 8, "mamba_head_dim": 8, "ssm_state_size": 8, "n_groups": 2, "chunk_size": 8,
        "num_hidden_layers": 4,
    },
    "Qwen3NextForCausalLM": DELTA | EXPERTS | {"head_dim": 8} | OF_HALF_VECTORS,
    "Qwen3_5MoeForCausalLM": DELTA | EXPERTS | {"head_dim": 8},
    "OlmoHybridForCausalLM": DELTA,
    "Lfm2MoeForCausalLM": CONVOLUTIONS | EXPERTS | {"num_dense_layers": 1},
    "BambaForCausalLM": MAMBA | {"attn_layer_indices": [1]},
    "FalconH1ForCausalLM": MAMBA | {"mamba_d_ssm": 64, "head_dim": 8},
}  # fmt: skip
SIZES = TINY | {
    "vocab_size": 64, "max_position_embeddings": 256, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0,
}  # fmt: skip
# How far the logit of a token may be below the greatest, in standard deviations of the logits.
TIE = 5e-4

PROMPTS = [[(7 * place + length) % 60 + 2 for place in range(length)] for length in (1, 3, 7, 17, 24, 40)]


def save_recurrent(name: str, folder: Path, **settings: Any) -> Any:
    """Save a tiny model, whose states last for many tokens, and return it."""
    torch.manual_seed(0)
    kind: Any = getattr(transformers, name)
    model = kind(kind.config_class(**SIZES | FAMILIES[name] | settings)).eval()
    for parameter, weight in model.named_parameters():
        if "norm" in parameter:  # otherwise all 1, or 0
            weight.data.uniform_(0.5, 1.5)
        if parameter.endswith("A_log"):
            weight.data.uniform_(-3.0, -1.0)
    model.save_pretrained(folder)
    return model


@torch.inference_mode()
def check_greedy(model: Any, prompt: Sequence[int], output: Sequence[int]) -> None:
    """Assert that each token of an output is the likeliest one by a forward without a cache."""
    tokens = torch.tensor([[*prompt, *output[:-1]]])
    logits = model(tokens, use_cache=False).logits[0, len(prompt) - 1 :].float()
    chosen = logits.gather(1, torch.tensor(output)[:, None])[:, 0]
    below = (logits.max(-1).values - chosen) / logits.std(-1)
    assert below.max() <= TIE, f"{output} are not the likeliest tokens after {prompt}: {below.tolist()}"


def start(folder: Path, **options: Any) -> LLMEngine:
    settings = {"num_gpu_blocks_override": 40, "max_model_len": 128} | options
    return LLMEngine.from_engine_args(
        EngineArgs(
            model=str(folder), dtype="float32", skip_tokenizer_init=True, disable_log_stats=True, **settings
        )
    )


def ask(engine: LLMEngine, name: str, prompt: Sequence[int], **params: Any) -> None:
    options = {"temperature": 0, "max_tokens": 10, "ignore_eos": True, "detokenize": False} | params
    engine.add_request(name, {"prompt_token_ids": list(prompt)}, SamplingParams(**options))


def scheduler_of(engine: LLMEngine) -> Scheduler:
    return engine._core.scheduler


def check_free(engine: LLMEngine) -> None:
    """Assert that no request has a block or a state any more."""
    scheduler = scheduler_of(engine)
    check_integrity(scheduler)
    assert all(pool.num_free == pool.num_blocks for pool in scheduler.table.pools)
