"""transformers' continuous batching under one of our loads, with the settings that it chooses itself."""

import time
from collections.abc import Iterator

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig

from benchmarks.driving import prompts_of
from benchmarks.gpu.load import FULL, Sizes
from benchmarks.gpu.report import Row
from benchmarks.gpu.shapes import SHAPES, Config

ROUNDS = 2  # the first compiles and captures


def measure(
    model: str,
    sizes: Sizes = FULL,
    config: Config | None = None,
    batching: ContinuousBatchingConfig | None = None,
    device: str = "cuda",
) -> Iterator[Row]:
    """Measure a model; `config`, `batching` and `device` differ in tests."""
    transformers.utils.logging.set_verbosity_error()
    shape = config or SHAPES[model]
    settings = AutoConfig.for_model(**shape)
    with torch.device(device):
        made = AutoModelForCausalLM.from_config(settings, dtype=torch.bfloat16).eval()
    generation = GenerationConfig(
        max_new_tokens=sizes.made_beside, do_sample=False, eos_token_id=-1, pad_token_id=0
    )
    for number in range(ROUNDS):
        prompts = prompts_of(sizes.requests, sizes.given, shape["vocab_size"], number)
        started = time.perf_counter()
        outputs = made.generate_batch(
            prompts,
            generation_config=generation,
            continuous_batching_config=batching,
            persistent_manager=True,
        )
        taken = time.perf_counter() - started
        tokens = sum(len(output.generated_tokens) for output in outputs.values())
        assert tokens == sizes.requests * sizes.made_beside, f"{tokens} tokens came"
        yield Row(f"load {sizes.given}/{sizes.made_beside}", {"tok/s": tokens / taken, "round": number + 1})
