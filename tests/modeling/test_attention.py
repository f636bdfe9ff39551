"""The attention hook without an engine."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import BertConfig, BertModel, DistilBertConfig, DistilBertModel

from engine_server.modeling.attention.hook import IMPLEMENTATION, ForwardContext, paged_attention
from engine_server.modeling.attention.interface import StepInputs, UnsupportedModelError
from engine_server.modeling.attention.step_attention import StepAttention
from engine_server.modeling.attention.torch_backend import TorchAttention
from engine_server.modeling.attention.torch_scores import Sequence
from engine_server.modeling.cache.layout import lay_out
from engine_server.modeling.cache.spec import LayerShape
from engine_server.modeling.heads.pending import Heads
from engine_server.modeling.heads.scoring import Scoring
from engine_server.modeling.heads.window import Window
from engine_server.modeling.platform.cpu import CpuPlatform

pytestmark = pytest.mark.transformers

LENGTHS = np.array([5, 1, 9])


def test_encoder_attends_to_its_whole_prompt_and_to_no_other() -> None:
    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "max_position_embeddings": 32, "initializer_range": 0.5}
    bert = BertModel(
        BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, **sizes)
    )
    distilbert = DistilBertModel(DistilBertConfig(dim=32, n_layers=2, n_heads=4, hidden_dim=64, **sizes))
    for model in (bert.eval(), distilbert.eval()):
        prompts = [torch.randint(50, (1, length)) for length in LENGTHS]
        with torch.inference_mode():
            expected = torch.cat([model(prompt).last_hidden_state for prompt in prompts], 1)
            model.set_attn_implementation(IMPLEMENTATION)
            with ForwardContext(StepAttention()).run(flat(prompts)):
                positions = torch.cat([torch.arange(length) for length in LENGTHS])[None]
                hidden = model(torch.cat(prompts, 1), position_ids=positions).last_hidden_state
        torch.testing.assert_close(hidden, expected)


def test_relative_bias_is_refused_for_decoders_windows_and_alibi() -> None:
    state, bias = torch.zeros(1, 2, int(LENGTHS.sum()), 8), torch.zeros(1, 2, 9, 9)
    prompts = [torch.zeros(1, length, dtype=torch.long) for length in LENGTHS]
    module = torch.nn.Module()
    module.layer_idx = 0
    with ForwardContext(StepAttention()).run(flat(prompts)):
        for options in ({"is_causal": True}, {"is_causal": False, "sliding_window": 4}):
            with pytest.raises(UnsupportedModelError, match="Module adds a relative bias"):
                paged_attention(module, state, state, state, None, relative_bias=bias, **options)


@pytest.mark.parametrize("count", [3, 40])
def test_decodes_in_bfloat16_are_close_to_float32(count: int) -> None:
    """Few and many decodes use different code paths; blocks are scattered, and contexts have all lengths up to 60."""
    generator = torch.Generator().manual_seed(count)
    layout = lay_out([LayerShape(kv_heads=2, key_dim=16, value_dim=16)], 64)
    backend = TorchAttention(layout, [4 * count], 16, torch.bfloat16, CpuPlatform())
    blocks = torch.randperm(4 * count, generator=generator).view(count, 4).to(torch.int32).numpy()
    lengths = np.arange(count) % 60 + 1
    wanted = []
    for sequence, length in enumerate(lengths.tolist()):
        query, key, value = (
            torch.randn(length, heads, 16, generator=generator).bfloat16() for heads in (4, 2, 2)
        )
        exact = F.scaled_dot_product_attention(
            *(part.float().transpose(0, 1)[None] for part in (query[-1:], key, value)), enable_gqa=True
        )
        wanted.append((query[-1:], key, value, exact[0].transpose(0, 1)))
        for place in range(length - 1):  # one decode at a time
            attend(backend, blocks[sequence : sequence + 1], [place], query[:1], *(
                part[place : place + 1] for part in (key, value)
            ))  # fmt: skip
    query, key, value, exact = (torch.cat(parts) for parts in zip(
        *((query, key[-1:], value[-1:], exact) for query, key, value, exact in wanted), strict=True
    ))  # fmt: skip
    output = attend(backend, blocks, (lengths - 1).tolist(), query, key, value)
    torch.testing.assert_close(output.float(), exact, atol=0.03, rtol=0.03)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"window": Window(70)},
        {"alibi": torch.tensor([0.5, 0.25, 0.125, 0.0625])},
        {"causal": False},
        {"causal": False, "relative_bias": torch.linspace(-2, 2, 4 * 300 * 300).sin().view(1, 4, 300, 300)},
    ],
    ids=["causal", "window", "alibi", "whole", "bias"],
)
def test_prompts_in_bfloat16_are_close_to_float32(options: dict) -> None:
    """In bfloat16 scores are written to memory, some rows at a time; in float32 torch's kernel is used."""
    torch.manual_seed(0)
    scoring = Scoring(16**-0.5, **options)
    cached = [] if scoring.relative_bias is not None else [(90, 300), (1, 5)]  # an encoder has no cache
    for tokens, context in [(300, 300), (128, 128), *cached]:
        tensors = [
            torch.randn(heads, length, 16).bfloat16()
            for heads, length in ((4, tokens), (2, context), (2, context))
        ]
        exact = Sequence(context, writes_scores=True).attend(*(part.float() for part in tensors), scoring)
        output = Sequence(context, writes_scores=True).attend(*tensors, scoring)
        assert output.shape == (tokens, 4, 16) and output.dtype == torch.bfloat16
        torch.testing.assert_close(output.float(), exact, atol=0.03, rtol=0.03)


def attend(
    backend: TorchAttention, blocks: np.ndarray, positions: list[int], query, key, value
) -> torch.Tensor:
    """Compute attention for one token of each sequence."""
    rows, contexts = np.arange(len(positions)), np.array(positions) + 1
    step = StepInputs.of(rows, np.ones_like(rows), contexts, kinds=1)._replace(tables=[blocks])
    step.place(blocks[None], 16)
    backend.begin(step)
    return backend.attend(0, Heads(query, key, value), Scoring(16**-0.5))


def flat(prompts: list[torch.Tensor]) -> StepInputs:
    """Return a step of whole prompts, without a cache."""
    return StepInputs.of(np.arange(len(LENGTHS)), LENGTHS, LENGTHS)
