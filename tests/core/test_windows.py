"""Models with and without sliding windows or chunks by layer: greedy output in float32 equals transformers' own."""

from pathlib import Path

import pytest
import torch
from tiers import tiered
from transformers import (
    AutoModelForCausalLM,
    Llama4ForCausalLM,
    Llama4TextConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from engine_server import EngineArgs, LLMEngine
from engine_server.modeling.cache.layout import lay_out
from engine_server.modeling.cache.spec import FULL, LayerShape, WindowSpec

pytestmark = pytest.mark.transformers

WINDOW = 20
NEW_TOKENS = 12
PROMPTS = [
    [(7 * position + length) % 126 + 2 for position in range(length)]
    for length in (1, 9, 19, 20, 21, 70, 130)
]


SIZES = {
    "vocab_size": 128, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "initializer_range": 0.5, "eos_token_id": 1,
    "bos_token_id": 0, "head_dim": 8,
}  # fmt: skip


def with_windows() -> PreTrainedModel:
    config = Qwen2Config(
        **SIZES, use_sliding_window=True, sliding_window=WINDOW,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    )  # fmt: skip
    return Qwen2ForCausalLM(config)


def with_chunks() -> PreTrainedModel:
    config = Llama4TextConfig(
        **SIZES, attention_chunk_size=WINDOW, no_rope_layers=[1, 0, 1], moe_layers=[], intermediate_size_mlp=64,
        floor_scale=30, attn_scale=0.5, pad_token_id=0,
    )  # fmt: skip
    return Llama4ForCausalLM(config)


@pytest.fixture(scope="module", params=[with_windows, with_chunks])
def mixed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a model of three layers, the first and the last with a window, or chunks, of 20 tokens."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("mixed")
    request.param().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def expected(mixed: Path) -> list[list[int]]:
    model = AutoModelForCausalLM.from_pretrained(mixed, dtype=torch.float32)
    return [
        model.generate(
            torch.tensor([prompt]), max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS, do_sample=False
        )[0, len(prompt) :].tolist()
        for prompt in PROMPTS
    ]


@pytest.mark.parametrize(
    ("blocks", "budget"), tiered([(60, 512), (60, 13), (16, 64)], (16, 64), more=[(60, 13)])
)
def test_windowed_layers_give_the_tokens_of_transformers(
    mixed: Path, expected, tiny_params, blocks: int, budget: int
) -> None:
    """Blank blocks are filled with large numbers before each step, which would show if a released block were read."""
    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=str(mixed), dtype="float32", skip_tokenizer_init=True, num_gpu_blocks_override=blocks,
            max_num_batched_tokens=budget, max_num_seqs=8, disable_log_stats=True,
        )
    )  # fmt: skip
    for number, prompt in enumerate(PROMPTS):
        params = tiny_params(temperature=0, max_tokens=NEW_TOKENS, min_tokens=NEW_TOKENS)
        engine.add_request(number, {"prompt_token_ids": prompt}, params)
    pools, backend = engine._core.scheduler.table.pools, engine._core.executor.first.backend
    assert len(pools) == 2  # since two of three layers have a window
    tensors = list(zip(backend.layout.tensor_pools, backend.keys, backend.values, strict=True))
    tokens: dict[str, list[int]] = {}
    while engine.has_unfinished_requests():
        for number, keys, values in tensors:
            for pages in (keys, values):
                pages.data[list(pools[number].blank_blocks)] = 1e4
        tokens |= {output.request_id: output.outputs[0].token_ids for output in engine.step()}
    assert [tokens[str(number)] for number in range(len(PROMPTS))] == expected
    assert engine.debug_state().scheduler.num_used_blocks == 0


def test_kinds_with_equal_layers_share_a_pool_and_tensors() -> None:
    window, other = WindowSpec(16), WindowSpec(32)
    full, near, wide = LayerShape(2, 8, 8), LayerShape(2, 8, 8, window), LayerShape(2, 8, 8, other)
    layout = lay_out([near, full, wide, near, full], longest=64)
    assert layout.specs == [window, FULL, other]
    assert layout.pools == [0, 0, 1]
    assert layout.kinds == [0, 1, 2, 0, 1]
    assert layout.tensors == [0, 0, 1, 2, 2]
    assert layout.tensor_pools == [0, 1, 0]
    assert layout.shapes == [full] * 3


def test_kinds_that_differ_in_shapes_or_numbers_of_layers_have_a_pool_each() -> None:
    window = WindowSpec(16)
    full, near, wide = LayerShape(2, 8, 8), LayerShape(2, 8, 8, window), LayerShape(1, 16, 16, window)
    for layers in ([near, full, near], [wide, full], [near, full, wide]):
        layout = lay_out(layers, longest=64)
        assert layout.pools == [0, 1]
        assert layout.tensors == [*range(len(layers))]
        assert layout.tensor_pools == layout.kinds


def test_window_as_long_as_the_context_counts_as_no_window() -> None:
    assert lay_out([LayerShape(2, 8, 8, WindowSpec(64)), LayerShape(2, 8, 8)], longest=64).specs == [FULL]
