"""The libraries that are compared, each in a process with an interpreter of its own."""

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

TOKENS = 128
# About as many tokens as are generated.
PROMPT = "Tell me a long story about number {}. " * 12


@contextmanager
def library(interpreter: str, module: str, gguf: Path) -> Iterator[Callable[[int, int], float]]:
    """Run one side; yield the function from batch size and round to output tokens a second."""
    command = [interpreter, "-m", module, str(gguf)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as side:
        assert side.stdin is not None and side.stdout is not None
        requests, answers = side.stdin, side.stdout

        def ask(prompts: list[str]) -> float:
            print(json.dumps({"prompts": prompts, "new_tokens": TOKENS}), file=requests, flush=True)
            line = next((line for line in answers if line.startswith("{")), None)
            if line is None:
                raise SystemExit(f"{module} ended")
            return TOKENS * len(prompts) / float(json.loads(line)["seconds"])

        def measure(batch: int, round: int) -> float:
            return ask([PROMPT.format(*[1000 * round + index] * 12) for index in range(batch)])

        ask(["Warm up."])
        yield measure
        requests.close()
