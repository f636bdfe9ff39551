"""Stretched ropes: sequences beyond the trained positions have the tokens that a fresh model of transformers gives."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from architectures import ALTERNATING, ORIGINAL, SIZES, WINDOW

from engine_server import EngineArgs, LLMEngine, SamplingParams

NEW_TOKENS = 6
# Within the trained positions, across them while tokens are generated, and beyond them from the start.
LENGTHS = (3, 14, 37)
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": ORIGINAL}
LONGROPE = {
    "rope_type": "longrope", "original_max_position_embeddings": ORIGINAL, "factor": 4.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [2.0, 3.0, 4.0, 5.0],
}  # fmt: skip
GEMMA_3 = {
    "head_dim": 8, "sliding_window": WINDOW, "query_pre_attn_scalar": 8, "layer_types": ALTERNATING,
    "max_position_embeddings": ORIGINAL,
}  # fmt: skip


def by_type(**full: Any) -> dict[str, Any]:
    """Return the settings of a Gemma 3 whose layers without a window have a rope of their own."""
    ropes = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
        "full_attention": {"rope_theta": 100.0, **full},
    }
    return GEMMA_3 | {"rope_parameters": ropes}


def flat(**rope: Any) -> dict[str, Any]:
    """Return the settings of a Llama with one rope."""
    return {"max_position_embeddings": ORIGINAL, "rope_parameters": {"rope_theta": 100.0, **rope}}


CASES = {
    "llama, dynamic with another original length": (
        "LlamaForCausalLM",
        flat(rope_type="dynamic", factor=4.0, original_max_position_embeddings=ORIGINAL // 2),
    ),
    "llama, linear beyond max_position_embeddings": (
        "LlamaForCausalLM",
        flat(rope_type="linear", factor=4.0),
    ),
    "llama, yarn with an outer original length": (
        "LlamaForCausalLM",
        flat(**YARN | {"original_max_position_embeddings": 99})
        | {"original_max_position_embeddings": ORIGINAL},
    ),
    "gemma 3, yarn": ("Gemma3ForCausalLM", by_type(**YARN, truncate=False)),
    "gemma 3, linear": ("Gemma3ForCausalLM", by_type(rope_type="linear", factor=4.0)),
    "gemma 3, dynamic": ("Gemma3ForCausalLM", by_type(rope_type="dynamic", factor=4.0)),
    "gemma 3, longrope": (
        "Gemma3ForCausalLM",
        by_type(**LONGROPE) | {"max_position_embeddings": 4 * ORIGINAL},
    ),
}


def save(folder: Path, model_class: str, settings: dict[str, Any]) -> transformers.PreTrainedModel:
    torch.manual_seed(0)
    kind = getattr(transformers, model_class)
    model: transformers.PreTrainedModel = kind(kind.config_class(**SIZES | settings)).eval()
    model.set_attn_implementation("eager")
    model.save_pretrained(folder)
    return model


def expected(model: transformers.PreTrainedModel, prompt: list[int]) -> list[int]:
    """Return a prompt's greedy tokens by a copy that has seen no other; a cache keeps keys of short ropes."""
    if "longrope" in str(model.config.rope_parameters):
        tokens = list(prompt)
        for _ in range(NEW_TOKENS):
            # Before 5.21 transformers can compute the long factors of a rope with a type for each layer once only.
            fresh: Any = copy.deepcopy(model)
            tokens.append(int(fresh(torch.tensor([tokens]), use_cache=False).logits[0, -1].argmax()))
        return tokens[len(prompt) :]
    fresh = copy.deepcopy(model)
    ids = torch.tensor([prompt])
    made = fresh.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS, do_sample=False,
        eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    generated: list[int] = made[0, len(prompt) :].tolist()
    return generated


@pytest.mark.transformers
@pytest.mark.parametrize("case", CASES)
def test_tokens_beyond_the_original_length_equal_those_of_a_fresh_model(
    case: str, tmp_path: Path, finish: Any
) -> None:
    model = save(tmp_path, *CASES[case])
    prompts = [torch.randint(2, SIZES["vocab_size"], (length,)).tolist() for length in LENGTHS]
    args = EngineArgs(
        model=str(tmp_path), dtype="float32", skip_tokenizer_init=True, max_model_len=48, block_size=4,
        num_gpu_blocks_override=24, max_num_batched_tokens=16, max_num_seqs=8,
    )  # fmt: skip
    engine = LLMEngine.from_engine_args(args)

    def greedy(*numbers: int) -> list[list[int]]:
        for place, number in enumerate(numbers):
            params = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True, detokenize=False)
            engine.add_request(str(place), {"prompt_token_ids": prompts[number]}, params)
        last = finish(engine)
        return [last[str(place)].outputs[0].token_ids for place in range(len(numbers))]

    tokens = [expected(model, prompt) for prompt in prompts]
    assert greedy(0, 1, 2, 0, 1, 2) == tokens * 2  # batched, in chunks, and preempted
    assert greedy(2, 1, 0) == [tokens[2], tokens[1], tokens[0]]  # from the cache


def test_overridden_rope_computes_what_the_same_rope_in_config_json_does(tmp_path: Path, finish: Any) -> None:
    rope = flat(**YARN)
    model = save(tmp_path, "LlamaForCausalLM", rope)
    prompt = list(range(2, 39))
    bare = copy.deepcopy(model)
    bare.config.rope_parameters = {"rope_type": "default", "rope_theta": 100.0}
    bare.save_pretrained(tmp_path)
    args = EngineArgs(
        model=str(tmp_path), dtype="float32", skip_tokenizer_init=True, hf_overrides={"rope_scaling": YARN}
    )
    engine = LLMEngine.from_engine_args(args)
    assert engine.model_config.max_model_len == 4 * ORIGINAL
    params = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True, detokenize=False)
    engine.add_request("0", {"prompt_token_ids": prompt}, params)
    assert finish(engine)["0"].outputs[0].token_ids == expected(model, prompt)


def test_two_stretched_ropes_of_one_model_are_refused(tmp_path: Path) -> None:
    dynamic = {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 4.0}
    save(tmp_path, "Gemma3ForCausalLM", by_type(**dynamic))
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    config.rope_parameters["sliding_attention"] = dict(dynamic)
    config.save_pretrained(tmp_path)
    args = EngineArgs(model=str(tmp_path), dtype="float32", skip_tokenizer_init=True)
    with pytest.raises(ValueError, match=r"the ropes of .* layers stretch with a context"):
        LLMEngine.from_engine_args(args)
