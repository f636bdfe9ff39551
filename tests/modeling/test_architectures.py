"""Every architecture of docs/models.md, as a tiny random model: its greedy output equals that of transformers."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from architectures import ARCHITECTURES, EXPERTS, SIZES, WINDOW, Architecture

from engine_server import EngineArgs, LLMEngine, SamplingParams, StatLoggerBase
from engine_server.requests.scheduler_stats import SchedulerStats
from engine_server.telemetry.stats import IterationStats

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
NEW_TOKENS = 6
# Block sizes, with so few blocks that requests are preempted. Blocks of 4 tokens are computed by plain torch, blocks of
# 16 by the CPU kernels where they are compiled.
BLOCKS = {4: 12, 16: 4}
# A prompt that stays short, one whose output crosses windows and trained positions, and one that is long from the
# start.
LENGTHS = (3, 14, 37)


def table() -> str:
    rows = [
        (
            "architecture",
            "class in transformers",
            "what is special",
            "operations of torch in decode programs",
        ),
        ("---",) * 4,
    ]
    rows += [
        (
            one.name,
            f"`{one.model}`",
            one.special,
            (", ".join(one.torch_operations) or "none") if one.recorded else "no program",
        )
        for one in ARCHITECTURES
    ]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


class Counts(StatLoggerBase):
    def __init__(self, config: object = None, engine_index: int = 0) -> None:
        self.preemptions = self.hits = 0

    def record(self, scheduler_stats: SchedulerStats | None, iteration_stats: IterationStats | None) -> None:
        if scheduler_stats:
            self.preemptions += scheduler_stats.num_preemptions
            self.hits += scheduler_stats.prefix_cache_hits

    def log_engine_initialized(self) -> None: ...


# One with experts, one with windows, a dense one, and one whose rope depends on the context; the others are thorough.
QUICK = ("qwen3-moe", 16), ("gemma 3", 4)
MORE = ("llama", 16), ("phi 3", 16)


def marks_of(case: tuple[str, int]) -> list[pytest.MarkDecorator]:
    if case in QUICK:
        return []
    return [pytest.mark.more if case in MORE else pytest.mark.thorough]


CASES = [
    pytest.param(
        architecture,
        block_size,
        id=f"{architecture.name}-{block_size}",
        marks=[
            *marks_of((architecture.name, block_size)),
            *([pytest.mark.transformers] if block_size == 16 else []),
        ],
    )
    for architecture, block_size in product(ARCHITECTURES, BLOCKS)
]


@pytest.mark.parametrize(("architecture", "block_size"), CASES)
def test_greedy_output_equals_that_of_transformers(
    architecture: Architecture, block_size: int, tmp_path: Path, finish
) -> None:
    torch.manual_seed(0)
    model_class = getattr(transformers, architecture.model)
    model = model_class(model_class.config_class(**SIZES | architecture.settings)).eval()
    model.set_attn_implementation("eager")  # the default of some releases ignores a softcap
    model.save_pretrained(tmp_path)
    prompts = [torch.randint(2, SIZES["vocab_size"], (1, length)) for length in LENGTHS]
    expected = [
        model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
            use_cache=architecture.name
            != "phi 3",  # some releases keep wrong entries when the factors change
            eos_token_id=None,
            pad_token_id=0,
        )[0, prompt.shape[1] :].tolist()
        for prompt in prompts
    ]
    counts = Counts()
    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=str(tmp_path), dtype="float32", skip_tokenizer_init=True, max_model_len=48, block_size=block_size,
            num_gpu_blocks_override=BLOCKS[block_size], max_num_batched_tokens=16, max_num_seqs=8,
        ),
        stat_loggers={"counts": counts},
    )  # fmt: skip

    def greedy(*numbers: int) -> list[list[int]]:
        for place, number in enumerate(numbers):
            prompt = {"prompt_token_ids": prompts[number][0].tolist()}
            params = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True, detokenize=False)
            engine.add_request(str(place), prompt, params)
        last = finish(engine)
        return [last[str(place)].outputs[0].token_ids for place in range(len(numbers))]

    assert greedy(0, 1, 2, 0, 1, 2) == expected * 2  # batched, and in chunks
    assert counts.preemptions > 0
    assert engine.reset_prefix_cache()
    for number, tokens in enumerate(expected):
        counts.hits = 0
        assert greedy(number) == [tokens]  # alone
        assert counts.hits == 0
        assert greedy(number) == [tokens]  # from the cache, where its prompt fills a block
        assert counts.hits > 0 or LENGTHS[number] <= block_size


@pytest.mark.transformers
@pytest.mark.parametrize(
    ("model", "settings", "reason"),
    [
        ("XGLMForCausalLM", {}, "2 layers, of which 0 call the attention interface"),
        ("DiffLlamaForCausalLM", {}, "2 layers, of which 2 call .* 4 times"),
        (
            "MiniMaxForCausalLM",
            {**EXPERTS, "num_local_experts": 4, "layer_types": ["linear_attention", "full_attention"]},
            "1 recurrent layers, which call functions of recurrences that are known 0 times",
        ),
        (
            "Qwen2MoeForCausalLM",
            {**EXPERTS, "use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 2},
            "does not attend as in transformers beyond its sliding_window",
        ),
        (
            "BartForCausalLM",
            {"d_model": 32, "decoder_layers": 2, "decoder_attention_heads": 4},
            "ignores position_ids",
        ),
        ("MptForCausalLM", {"d_model": 32}, "can't take one flat batch without a mask"),
        (
            "GitForCausalLM",
            {
                "vision_config": {
                    "hidden_size": 8,
                    "num_attention_heads": 1,
                    "num_hidden_layers": 1,
                    "image_size": 16,
                }
            },
            "its attention can't be replaced",
        ),
    ],
)
def test_model_that_would_be_computed_wrongly_is_refused(
    model: str, settings: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    model_class = getattr(transformers, model)
    model_class(model_class.config_class(**SIZES | settings)).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=reason):
        LLMEngine.from_engine_args(
            EngineArgs(model=str(tmp_path), skip_tokenizer_init=True, generation_config="vllm")
        )


def test_documentation_has_a_row_for_each_architecture() -> None:
    assert table() in PAGE.read_text(), f"run python {__file__}"


if __name__ == "__main__":
    before, _, rest = PAGE.read_text().partition("| architecture |")
    PAGE.write_text(before + table() + rest[rest.index("\n\n") + 1 :])
