"""Routers that choose experts by a kernel, against transformers' own."""

from typing import Any

import pytest
import torch
import transformers
from tiny_models import TINY

from engine_server.modeling.formats.fixed_order import fix_order
from engine_server.modeling.formats.products import as_loaded
from engine_server.modeling.kernels.router import choose
from engine_server.modeling.layers.adapted_router import takes_updates
from engine_server.modeling.layers.fused_router import FusedRouter, RouterForm, fuse_router
from engine_server.modeling.layers.kernel_sets.triton import TRITON
from engine_server.modeling.replacements.replacement import Setup
from engine_server.modeling.replacements.routers import form_of, is_router

SIZES = TINY | {"vocab_size": 64, "num_hidden_layers": 1, "head_dim": 8, "pad_token_id": 0}
COUNTS = {"num_experts_per_tok": 3, "moe_intermediate_size": 24}
# The form of each model's router, and the settings of a tiny one.
MODELS: dict[str, tuple[RouterForm | None, str, dict[str, Any]]] = {
    "normalised": (RouterForm(True, None), "Qwen3Moe", {"num_experts": 9, "norm_topk_prob": True}),
    "softmax of all": (RouterForm(False, None), "Qwen3Moe", {"num_experts": 8, "norm_topk_prob": False}),
    "in float32": (RouterForm(True, torch.float32), "Mixtral", {"num_local_experts": 8}),
    "with a bias": (RouterForm(True, None), "GptOss", {"num_local_experts": 8}),
    "sigmoid": (None, "Glm4Moe", {"n_routed_experts": 8, "first_k_dense_replace": 0}),
}


def router(model: str, settings: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    kind: Any = getattr(transformers, f"{model}ForCausalLM")
    made = kind._from_config(kind.config_class(**SIZES | COUNTS | settings))
    found = next(module for module in made.modules() if is_router(module)).requires_grad_(False)
    for parameter in found.parameters():
        torch.nn.init.normal_(parameter)
    return found


@pytest.mark.parametrize("case", MODELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fused_router_chooses_as_transformers_does(
    case: str, dtype: torch.dtype, device: torch.device
) -> None:
    form, model, settings = MODELS[case]
    own = router(model, settings).to(device, dtype)
    assert form_of(own, Setup(TRITON, device, as_loaded)) == form
    if form is None:
        return
    rows = torch.randn(50, 32, device=device).to(dtype)
    logits, weights, index = own(rows)
    fuse_router(own, form, choose, as_loaded)
    assert isinstance(own, FusedRouter)
    found = own(rows)
    assert torch.equal(found[0], logits)
    assert found[1].dtype == weights.dtype
    torch.testing.assert_close(found[1], weights, rtol=2 * torch.finfo(weights.dtype).eps, atol=1e-6)
    # Of equal logits, which bfloat16 has, torch chooses any.
    torch.testing.assert_close(logits.gather(1, found[2]), logits.gather(1, index))
    assert all(len(set(row)) == 3 for row in found[2].tolist())


@pytest.mark.parametrize("case", [case for case, (form, *_) in MODELS.items() if form is not None])
def test_fused_router_takes_updates_of_adapters(case: str, device: torch.device) -> None:
    form, model, settings = MODELS[case]
    own = router(model, settings).to(device, torch.bfloat16)
    assert form is not None
    fuse_router(own, form, choose, as_loaded)

    assert takes_updates(own, TRITON.add_low_rank)


def test_choice_of_a_token_has_the_same_bits_in_any_batch(device: torch.device) -> None:
    own = router("Qwen3Moe", {"num_experts": 9}).to(device, torch.bfloat16)
    fuse_router(own, RouterForm(True, None), choose, fix_order)
    rows = torch.randn(200, 32, device=device).bfloat16()
    together = own(rows)
    for token in (0, 99, 199):
        alone = own(rows[token : token + 1])
        assert all(torch.equal(one[0], all[token]) for one, all in zip(alone, together, strict=True))


def test_rows_of_nan_and_infinity_choose_existing_experts(device: torch.device) -> None:
    logits = torch.full((2, 5), torch.nan, device=device)
    logits[1] = -torch.inf
    _, index = choose(logits, 2, True, torch.float32)
    assert index.min() >= 0 and index.max() < 5
