"""Models with recurrent layers beside transformers' `generate`, with random weights of published shapes, in process.

    python -m benchmarks.recurrent [--models qwen3.5-0.8b lfm2.5-1.2b granite-4-h-1b] [--rounds 3]

Both sides have the same float32 weights and threads, and take turns. Prints the medians of the time to the first token
of a prompt, and of output tokens a second at one request and at several.
"""

import argparse
import gc
import tempfile
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
import transformers

from benchmarks.transformers_side import generate
from engine_server import EngineArgs, LLMEngine, SamplingParams

# From the published configs; the vocabulary is cut, which costs both sides the same.
COMMON = {"vocab_size": 32000, "tie_word_embeddings": True, "max_position_embeddings": 8192}
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3.5-0.8b": (
        "Qwen3_5ForCausalLM",
        {
            "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 8, "num_key_value_heads": 2,
            "head_dim": 256, "intermediate_size": 3584, "linear_num_key_heads": 16, "linear_num_value_heads": 16,
            "linear_key_head_dim": 128, "linear_value_head_dim": 128,
        },
    ),
    "lfm2.5-1.2b": (
        "Lfm2ForCausalLM",
        {
            "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
            "intermediate_size": 12288, "conv_L_cache": 3,
            "layer_types": [
                "full_attention" if layer in (2, 5, 8, 10, 12, 14) else "conv" for layer in range(16)
            ],
        },
    ),
    "granite-4-h-1b": (
        "GraniteMoeHybridForCausalLM",
        {
            "hidden_size": 1536, "num_hidden_layers": 40, "num_attention_heads": 12, "num_key_value_heads": 4,
            "shared_intermediate_size": 4096, "num_local_experts": 0, "num_experts_per_tok": 0,
            "mamba_n_heads": 48, "mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_groups": 1,
            "position_embedding_type": "nope",
            "layer_types": [
                "full_attention" if layer in (5, 15, 25, 35) else "linear_attention" for layer in range(40)
            ],
        },
    ),
}  # fmt: skip
PROMPT, SHORT, NEW_TOKENS, SEVERAL = 2040, 32, 32, 8


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    print(
        f"transformers {transformers.__version__}, torch {torch.__version__}, {torch.get_num_threads()} threads"
    )
    for name in given.models:
        compare(name, given.rounds)
        gc.collect()


def compare(name: str, rounds: int) -> None:
    """Measure a shape on both sides in turn, and print the medians."""
    kind, settings = SHAPES[name]
    torch.manual_seed(0)
    model_class: Any = getattr(transformers, kind)
    model = model_class(model_class.config_class(**COMMON | settings)).eval()
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        engine = LLMEngine.from_engine_args(
            EngineArgs(
                model=folder, dtype="float32", skip_tokenizer_init=True, disable_log_stats=True, max_num_seqs=16,
                max_model_len=4096, max_num_batched_tokens=4096, enable_prefix_caching=True,
            )
        )  # fmt: skip
    sides: dict[str, Callable[[int, int, int], float]] = {
        "Fairlead": lambda length, count, new: engine_seconds(engine, length, count, new),
        "transformers": lambda length, count, new: generate_seconds(model, length, count, new),
    }
    figures: dict[str, list[tuple[float, ...]]] = {side: [] for side in sides}
    for turn in range(rounds + 1):
        for side, seconds in sides.items():
            first = seconds(PROMPT, 1, 1)
            rates = []
            for count in (1, SEVERAL):
                begun = seconds(SHORT, count, 1)
                rates.append(count * (NEW_TOKENS - 1) / (seconds(SHORT, count, NEW_TOKENS) - begun))
            if turn:  # the first round warms up
                figures[side].append((first, *rates))
    for side, found in figures.items():
        first, one, several = (median(each) for each in zip(*found, strict=True))
        print(
            f"{name}, {side}: first token of {PROMPT} {first:.2f} s; tok/s at 1 {one:.2f}, at {SEVERAL} {several:.2f}",
            flush=True,
        )


def prompts(length: int, count: int) -> torch.Tensor:
    """Return random prompts [count, length] that no cache has seen."""
    return torch.randint(2, 30000, (count, length))


def engine_seconds(engine: LLMEngine, length: int, count: int, new: int) -> float:
    """Return the seconds that the engine takes for `new` tokens of each of `count` prompts."""
    params = SamplingParams(temperature=0, max_tokens=new, ignore_eos=True, detokenize=False)
    started = time.perf_counter()
    for number, prompt in enumerate(prompts(length, count).tolist()):
        engine.add_request(str(number), {"prompt_token_ids": prompt}, params)
    while engine.has_unfinished_requests():
        engine.step()
    return time.perf_counter() - started


@torch.inference_mode()
def generate_seconds(model: Any, length: int, count: int, new: int) -> float:
    """Return the seconds that `generate` takes for the same."""
    given = prompts(length, count).tolist()
    started = time.perf_counter()
    generate(model, given, new)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
