"""In float32 a request's tokens are independent of batch, budget, block size, cache and preemption.

A float8 cache changes tokens, but equally in all batches, since each head of each token has its own scale.
"""

from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiers import tiered
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

from engine_server import EngineArgs, LLMEngine, SamplingParams

CONTEXT = 48
STORY = [place * 7 % 120 + 3 for place in range(36)]


@pytest.fixture(scope="module")
def windows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a model with windows of 9 tokens in all layers but one."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("windows")
    config = Gemma3TextConfig(
        vocab_size=128, hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=CONTEXT, initializer_range=0.5, eos_token_id=1,
        bos_token_id=0, pad_token_id=0, sliding_window=9,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    )  # fmt: skip
    Gemma3ForCausalLM(config).save_pretrained(folder)
    return folder


def make(model: Path, spare: int, block_size: int, **options) -> LLMEngine:
    return LLMEngine.from_engine_args(
        EngineArgs(
            model=str(model), dtype="float32", skip_tokenizer_init=True, max_model_len=CONTEXT, block_size=block_size,
            num_gpu_blocks_override=CONTEXT // block_size + spare, disable_log_stats=True, **options,
        )
    )  # fmt: skip


@pytest.fixture(scope="module", params=tiered(["tiny_llama", "windows"], "windows"))
def model(request) -> tuple[Path, dict[str, LLMEngine], dict]:
    """Return a model, engines that get one request at a time, and their outputs by request."""
    folder = request.getfixturevalue(request.param)
    plain = {"max_num_batched_tokens": CONTEXT, "max_num_seqs": 1, "enable_prefix_caching": False}
    engines = {dtype: make(folder, 0, 16, kv_cache_dtype=dtype, **plain) for dtype in ("auto", "fp8", "int8")}
    return folder, engines, {}


def answer(engine: LLMEngine, questions: list, arrivals: list[int]) -> list[list[int]]:
    """Add each request at its step, and return the tokens of all."""
    tokens: dict[str, list[int]] = {}
    step = 0
    while step <= max(arrivals) or engine.has_unfinished_requests():
        for number, (shared, own, seed) in enumerate(questions):
            if arrivals[number] == step:
                params = SamplingParams(
                    seed=seed, temperature=seed % 2, max_tokens=6, ignore_eos=True, detokenize=False
                )
                engine.add_request(
                    number, {"prompt_token_ids": [*STORY[:shared], *range(3, 3 + own)]}, params
                )
        tokens |= {output.request_id: output.outputs[0].token_ids for output in engine.step()}
        step += 1
    return [tokens[str(number)] for number in range(len(questions))]


questions = st.lists(
    st.tuples(st.integers(1, 46), st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=8
)


options = st.fixed_dictionaries(
    {
        "kv_cache_dtype": st.sampled_from(["auto", "fp8", "int8"]),
        "block_size": st.sampled_from([2, 4, 8, 16]),
        "max_num_batched_tokens": st.integers(7, 80),
        "max_num_seqs": st.integers(1, 8),
        "enable_prefix_caching": st.booleans(),
        "async_scheduling": st.booleans(),
    }
)


# Each example starts an engine.
@pytest.mark.more
@settings(
    max_examples=settings().max_examples // 5, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(questions, st.data(), st.integers(0, 6), options)
def test_tokens_are_independent_of_batch_composition(
    model, questions, data, spare: int, options: dict
) -> None:
    folder, plain, alone = model
    dtype = options["kv_cache_dtype"]
    for question in questions:
        if (dtype, question) not in alone:
            [alone[dtype, question]] = answer(plain[dtype], [question], [0])
    engine = make(folder, spare, **options)
    arrivals = data.draw(st.lists(st.integers(0, 5), min_size=len(questions), max_size=len(questions)))
    for _ in range(1 + options["enable_prefix_caching"]):  # the second run reads a filled cache
        assert answer(engine, questions, arrivals) == [alone[dtype, question] for question in questions]
        engine.check_integrity()
        assert engine.debug_state().scheduler.num_used_blocks == 0
