"""Sharding: a model shared by several ranks computes the same as the whole model.

The ranks are threads here, and their collectives are real.
"""

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import torch
import transformers
from tiers import tiered
from tiny_models import TINY
from torch import Tensor, nn
from torch.distributed import HashStore, ProcessGroupGloo
from transformers import AttentionInterface, PreTrainedModel

from engine_server.modeling.device.communicator import Communicator
from engine_server.modeling.formats.products import as_loaded
from engine_server.modeling.layers.experts import Experts
from engine_server.modeling.layers.kernel_sets.plain import CPU
from engine_server.modeling.loader.sharding import shard
from engine_server.modeling.loader.weights import (
    replace_embedding,
    replace_linears,
    settle,
)
from engine_server.modeling.replacements.experts import EXPERTS, class_for
from engine_server.modeling.replacements.projections import fuse_projections
from engine_server.modeling.replacements.replacement import Setup

pytestmark = pytest.mark.transformers

TOKENS = torch.tensor([[3, 97, 1, 0, 50, 51, 98, 7]])
SIZES = TINY | {
    "vocab_size": 99,  # not divisible by any number of ranks
    "pad_token_id": 97,  # not in the first rank's part
}
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
MIMO = {
    "head_dim": 8, "v_head_dim": 6, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
    "layer_types": ["full_attention", "sliding_attention"], "sliding_window": 64,
}  # fmt: skip


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    scaling: float,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Compute causal attention like the hook, with sinks, grouped by the rank's own heads."""
    key, value = (part.repeat_interleave(query.shape[1] // key.shape[1], 1) for part in (key, value))
    scores = query @ key.mT * scaling
    scores = scores.masked_fill(torch.ones_like(scores).tril() == 0, -torch.inf)
    if s_aux is not None:
        scores = torch.cat([scores, s_aux.view(1, -1, 1, 1).expand(-1, -1, scores.shape[2], 1)], -1)
    return (scores.softmax(-1)[..., : key.shape[2]] @ value).transpose(1, 2), None


AttentionInterface.register("causal", attend)


def tiny(kind: str, **sizes: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**SIZES | sizes)
    model: PreTrainedModel = getattr(transformers, f"{kind}ForCausalLM")._from_config(
        config, attn_implementation="causal"
    )
    for name, parameter in model.named_parameters():
        if name.endswith(("bias", "norm.weight", "sinks")):
            nn.init.normal_(parameter, 1.0, 0.5)  # otherwise all values are equal
    return model.eval().requires_grad_(False)


def part_of(model: PreTrainedModel, ranks: Communicator) -> PreTrainedModel:
    """Return one rank's part of a copy of `model`."""
    own = copy.deepcopy(model)
    replace_linears(own, as_loaded)
    replace_embedding(own)
    setup = Setup(CPU, torch.device("cpu"), as_loaded)
    EXPERTS.apply(
        own, {site.key: class_for(site.module, setup) or Experts for site in EXPERTS.sites(own)}, setup
    )
    shard(own, ranks)
    fuse_projections(own)
    settle(own)
    return own


def on_ranks(size: int, work: Callable[[Communicator], Any]) -> list[Any]:
    """Return the results of `work` on each rank, with a thread for each."""
    store = HashStore()

    def run(rank: int) -> Any:
        with torch.inference_mode():
            return work(Communicator(rank, size, ProcessGroupGloo(store, rank, size, timedelta(seconds=60))))

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(run, range(size)))


@pytest.mark.parametrize("size", tiered([2, 4], 4))
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        pytest.param("Llama", {}, id="kv heads fewer than four ranks"),
        pytest.param(
            "Llama", {"tie_word_embeddings": True, "num_key_value_heads": 1}, id="tied, one kv head"
        ),
        pytest.param("Qwen2", {"num_key_value_heads": 4}, id="biases"),
        pytest.param("Qwen3", {"tie_word_embeddings": True, "head_dim": 16}, id="norms of heads"),
        pytest.param("Gemma2", {"head_dim": 8, "query_pre_attn_scalar": 8}, id="scaled embedding"),
        pytest.param("Qwen3Moe", MOE, id="experts"),
        pytest.param("MiMoV2Flash", MIMO, id="sinks, values of another size"),
        pytest.param("Phi3", {}, id="packed projections, gathered"),
        pytest.param("Olmo2", {}, id="norms over all heads"),
        pytest.param("GPTNeoX", {"num_key_value_heads": None}, id="biases of rows, fused heads"),
    ],
)
def test_logits_of_a_sharded_model_are_those_of_the_whole(
    kind: str, options: dict[str, Any], size: int
) -> None:
    model = tiny(kind, **options)
    with torch.inference_mode():
        expected = model(TOKENS, use_cache=False).logits

    def work(ranks: Communicator) -> Tensor:
        own = part_of(model, ranks)
        return own(TOKENS, use_cache=False).logits

    for logits in on_ranks(size, work):
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


def test_rank_keeps_only_its_part_of_the_weights() -> None:
    model = tiny("Llama", tie_word_embeddings=True)
    model_size = sum(parameter.numel() for parameter in model.parameters())

    for own in on_ranks(2, lambda ranks: part_of(model, ranks)):
        norms = sum(part.numel() for name, part in own.named_parameters() if "norm" in name)
        padding = 50 * 32 - 99 * 32 / 2
        assert (
            sum(parameter.numel() for parameter in own.parameters())
            == (model_size - norms) / 2 + norms + padding
        )
        attention = own.model.layers[0].self_attn
        assert all(attention.get_submodule(name).fused is not None for name in ("q_proj", "k_proj", "v_proj"))
        assert own.lm_head.weight is own.model.embed_tokens.weight  # still tied


@pytest.mark.parametrize(
    ("kind", "options", "size", "message"),
    [
        ("OPT", {}, 2, "size is 2; OPTForCausalLM has no tp_plan"),
        ("Llama", {}, 3, "size is 3, which doesn't divide the model's 4 attention heads"),
        (
            "Llama",
            {"intermediate_size": 46},
            4,
            "size is 4, which doesn't divide the model's 46 .* of gate_proj",
        ),
        (
            "Llama",
            {"hidden_size": 48, "num_attention_heads": 12, "num_key_value_heads": 3},
            2,
            "size is 2, .* 3 heads",
        ),
    ],
)
def test_model_that_ranks_cannot_share_equally_is_refused_with_both_numbers(
    kind: str, options: dict[str, Any], size: int, message: str
) -> None:
    ranks = Communicator(0, size, ProcessGroupGloo(HashStore(), 0, 1, timedelta(seconds=60)))
    with pytest.raises(ValueError, match=f"tensor_parallel_{message}"):
        part_of(tiny(kind, **options), ranks)


def test_activations_chosen_by_all_of_a_row_are_refused() -> None:
    """Gemma 3n keeps the largest by mean and deviation, which a rank would take over its part."""
    config = transformers.Gemma3nTextConfig(
        **SIZES | {"head_dim": 8, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 99, "laurel_rank": 4},
        num_kv_shared_layers=0, layer_types=["sliding_attention", "full_attention"],
        activation_sparsity_pattern=[0.5, 0.0],
    )  # fmt: skip
    model = transformers.Gemma3nForCausalLM(config)
    ranks = Communicator(0, 2, ProcessGroupGloo(HashStore(), 0, 1, timedelta(seconds=60)))
    with pytest.raises(ValueError, match=r"size is 2; model\.layers\.0\.mlp of Gemma3nForCausalLM keeps"):
        part_of(model, ranks)
