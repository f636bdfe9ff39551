"""The libraries that are compared, each in a process of its own that answers lines of JSON.

A request has `prompts` and `new_tokens`; the answer has `seconds`, and ours also `kernels` and `steps`.
"""

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.cpu.recorded import Run
from benchmarks.cpu.rounds import LEAST_REQUESTS, Side, Work

# A sentence, and about how many tokens it is.
SENTENCE, SENTENCE_TOKENS = "Tell me a long story about number {}. ", 10.7


@contextmanager
def library(name: str, command: Sequence[str], folder: Path | None = None) -> Iterator[tuple[Side, Run]]:
    """Run one side; yield it, and how its steps run, which only ours answers.

    folder: in which the command runs; default: the current one.
    """
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=folder
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        requests, answers = process.stdin, process.stdout
        last: dict[str, Any] = {}

        def ask(prompts: list[str], new_tokens: int) -> float:
            print(json.dumps({"prompts": prompts, "new_tokens": new_tokens}), file=requests, flush=True)
            line = next((line for line in answers if line.startswith("{")), None)
            if line is None:
                raise SystemExit(f"{name} ended")
            last.update(json.loads(line))
            return float(last["seconds"])

        def measure(work: Work, number: int) -> float:
            size = work.requests_at_a_time
            if work.figure == "first token, s":
                return ask([prompt_of(work.prompt_tokens, 1000 * number + index) for index in range(size)], 1)
            count = max(LEAST_REQUESTS, size)
            prompts = [prompt_of(work.prompt_tokens, 1000 * number + index) for index in range(count)]
            seconds = sum(ask(prompts[at : at + size], work.new_tokens) for at in range(0, count, size))
            return work.new_tokens * count / seconds

        ask(["Warm up."], 8)
        yield Side(name, process.pid, measure), Run(lambda: last["kernels"], lambda: last["steps"])
        requests.close()


def prompt_of(tokens: int, number: int) -> str:
    """Return a text of about so many tokens, which no other number has."""
    return SENTENCE.format(number) * round(tokens / SENTENCE_TOKENS)
