"""transformers' own generation in a separate process, unaffected by the process-wide settings of our engine.

It prints "ready" once the model is loaded. Then it reads lines of JSON, {"way": "generate" or "continuous batching",
"prompts": [[...]], "new_tokens": n}, and answers each with {"tokens": made, "seconds": taken}.
"""

import argparse
import json
import sys
import time
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig

from benchmarks.driving import Prompts
from engine_server.model_sources import resolve

# A PreTrainedModel that generates, for which transformers has no type.
GeneratingModel = Any


def generate(model: GeneratingModel, prompts: Prompts, new_tokens: int) -> int:
    """Generate for one batch; all prompts have the same length, so nothing is padded."""
    ids = torch.tensor(prompts)
    made = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=new_tokens,
        min_new_tokens=new_tokens,
        do_sample=False,
        pad_token_id=0,
    )
    return (made.shape[1] - ids.shape[1]) * len(prompts)


def continuous(model: GeneratingModel, prompts: Prompts, new_tokens: int) -> int:
    blocks = sum(len(prompt) + new_tokens for prompt in prompts) // 16
    made = model.generate_batch(
        prompts,
        generation_config=GenerationConfig(
            max_new_tokens=new_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0
        ),
        continuous_batching_config=ContinuousBatchingConfig(
            page_size=16, num_blocks=blocks + 64, max_batch_tokens=2048
        ),
    )
    return sum(len(one.generated_tokens) for one in made.values())


WAYS = {"generate": generate, "continuous batching": continuous}


def main() -> int:
    parser = argparse.ArgumentParser(description="transformers' side of a comparison.")
    parser.add_argument("--model", required=True)
    parser.add_argument("--dtype", required=True)
    flags = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    model = AutoModelForCausalLM.from_pretrained(
        resolve(flags.model, load_format="dequantized"), dtype=flags.dtype
    )
    print("ready", flush=True)
    for line in sys.stdin:
        task = json.loads(line)
        started = time.perf_counter()
        tokens = WAYS[task["way"]](model, task["prompts"], task["new_tokens"])
        print(json.dumps({"tokens": tokens, "seconds": time.perf_counter() - started}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
