"""Compare log-probabilities of tiny llamas with those of llama.cpp, for each kind of a rope in a GGUF file.

python -m pip install --target=/tmp/xllamacpp xllamacpp==2026.10.11549
PYTHONPATH=/tmp/xllamacpp:tests python -m model_sources.gguf_logits
"""

import multiprocessing
import os
import tempfile
from pathlib import Path
from typing import Any

from model_sources.gguf_ropes import ROPES, save_rope
from model_sources.llama_cpp import LlamaCpp

from engine_server import LLM, SamplingParams
from engine_server.requests.prompts import TokensPrompt

PROMPT = [1, 40, 50, 60, 70]
TOKENS = 100
# Of each position, the likeliest.
SHOWN = 20


def theirs(file: Path) -> tuple[list[int], list[dict[int, float]]]:
    """Return greedy tokens, and the log-probabilities at each of them."""
    answer = LlamaCpp(file).complete(PROMPT, TOKENS, SHOWN)
    steps = answer["completion_probabilities"]
    shown = [{one["id"]: one["logprob"] for one in step["top_logprobs"]} for step in steps]
    return [step["id"] for step in steps], shown


def ours(file: Path, tokens: list[int]) -> list[dict[int, float]]:
    """Return the log-probabilities of the whole vocabulary at each token."""
    llm = LLM(model=str(file), dtype="float32", max_logprobs=-1)
    params = SamplingParams(max_tokens=1, prompt_logprobs=-1)
    (output,) = llm.generate([TokensPrompt(prompt_token_ids=PROMPT + tokens)], params)
    found = output.prompt_logprobs
    assert found is not None
    return [{one: value.logprob for one, value in (step or {}).items()} for step in found[len(PROMPT) :]]


def compare(name: str, keys: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FAIRLEAD_CACHE"] = folder
        file = save_rope(Path(folder) / f"{name}.gguf", **keys)
        tokens, expected = theirs(file)
        found = ours(file, tokens)
        largest = max(
            abs(values[token] - mine[token])
            for values, mine in zip(expected, found, strict=True)
            for token in values
        )
        print(f"{name}: {len(tokens)} tokens, largest difference {largest:.4f}", flush=True)


if __name__ == "__main__":
    for name, keys in ROPES.items():
        process = multiprocessing.Process(target=compare, args=(name, keys))
        process.start()
        process.join()
