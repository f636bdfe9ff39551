"""The engine on a CPU beside vLLM's CPU build, OpenVINO GenAI and llama.cpp.

    python -m benchmarks.cpu --folder FOLDER [--vllm VENV] [--gguf FILE [--openvino VENV] [--llama FOLDER]]

--folder is a model in bfloat16, for the servers; --gguf a GGUF file of it, for the libraries in process and for our
server. --vllm and --openvino are virtual environments with vLLM's CPU build and with openvino-genai, --llama a folder
in which npm installed node-llama-cpp.

All sides run from the start and are measured in turn, five rounds (rounds.py has the rules). Figures are medians: the
output tokens a second of 1, 8 and 32 requests at a time with 128 tokens in and out; the seconds until a prompt has its
first token, or all of some that come at once; and over HTTP, of 8 clients that decode while prompts of 2,000 tokens
arrive, the longest time between two tokens, and the tokens a second. Behind output tokens is their share of the bound:
the time in which all threads read the weights that a token needs from memory, as a share of the time of a decode step.
They are printed, and saved in benchmarks/results.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks import yardstick
from benchmarks.cpu.libraries import library
from benchmarks.cpu.recorded import Run
from benchmarks.cpu.rounds import SPREAD, Cell, Side, Work, compare
from benchmarks.cpu.servers import fairlead_server, vllm_server
from benchmarks.record import save
from engine_server.modeling.native import levels

AT_A_TIME = (1, 8, 32)
# Numbers of prompts that come at once, and their tokens.
PROMPTS = ((1, 128), (1, 512), (1, 2040), (1, 8000), (8, 128), (8, 512), (32, 128), (32, 512))
BESIDE = 2000
HTTP_BF16, HTTP_Q4 = "Fairlead, bfloat16, HTTP", "Fairlead, GGUF, HTTP"
IN_PROCESS = "Fairlead, GGUF, in process"
# A table of which a token needs a row (Gemma 3n, Gemma 4). The token embeddings count: mostly they are the head too.
GATHERED = "embed_tokens_per_layer.weight"


def start(
    stack: ExitStack, flags: argparse.Namespace, logs: Path
) -> tuple[list[Side], list[Side], dict[str, Run]]:
    """Start all sides; return the servers, the libraries, and how ours run."""
    bf16, bf16_run = stack.enter_context(
        fairlead_server(HTTP_BF16, flags.folder, "bfloat16", logs / "bf16.log")
    )
    servers, runs = [bf16], {HTTP_BF16: bf16_run}
    if flags.gguf:
        q4, runs[HTTP_Q4] = stack.enter_context(
            fairlead_server(HTTP_Q4, flags.gguf, "auto", logs / "gguf.log")
        )
        servers.append(q4)
    if flags.vllm:
        servers.append(
            stack.enter_context(
                vllm_server("vLLM, bfloat16, HTTP", flags.vllm, flags.folder, logs / "vllm.log")
            )
        )
    libraries: list[Side] = []
    if flags.gguf:
        own = (sys.executable, "-m", "benchmarks.cpu.fairlead_side", str(flags.gguf))
        ours, runs[IN_PROCESS] = stack.enter_context(library(IN_PROCESS, own))
        libraries.append(ours)
    if flags.openvino:
        openvino = (str(flags.openvino / "bin/python"), "-m", "benchmarks.cpu.openvino_side", str(flags.gguf))
        libraries.append(stack.enter_context(library("OpenVINO, GGUF, in process", openvino))[0])
    if flags.llama:
        script = Path(__file__).with_name("llama_side.mjs")
        llama = ("node", str(script), str(flags.gguf.resolve()))
        libraries.append(stack.enter_context(library("llama.cpp, GGUF, in process", llama, flags.llama))[0])
    return servers, libraries, runs


def weights_bytes(model: Path) -> int:
    """Return the bytes that a token needs: those of a GGUF file, or of a folder's tensors without GATHERED."""
    if model.is_file():
        return model.stat().st_size
    tensors = (tensor for file in model.glob("*.safetensors") for tensor in tensors_of(file))
    return sum(end - begin for name, begin, end in tensors if not name.endswith(GATHERED))


def tensors_of(file: Path) -> Iterator[tuple[str, int, int]]:
    """Yield the name, the first byte and the end of each tensor of a safetensors file."""
    with file.open("rb") as opened:
        header = json.loads(opened.read(int.from_bytes(opened.read(8), "little")))
    for name, tensor in header.items():
        if name != "__metadata__":
            yield name, *tensor["data_offsets"]


def describe(name: str, work: Work, cell: Cell, read_seconds: float) -> dict[str, float]:
    """Return what is saved of a cell: its figure, the spread of its rounds, and its share of the bound."""
    saved = {"median": round(cell.median, 3), "spread": round(cell.spread, 2)}
    if work.figure == "tok/s":
        steps_a_second = cell.median / work.requests_at_a_time
        saved["share_of_bound"] = round(steps_a_second * read_seconds, 3)
    return saved


def table(figures: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """Return a Markdown table with a row for each side."""
    works = list(figures)
    names = dict.fromkeys(name for cells in figures.values() for name in cells)
    lines = [f"| | {' | '.join(works)} |", "|---|" + "---|" * len(works)]
    for name in names:
        cells = (show(figures[work][name]) if name in figures[work] else "" for work in works)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def show(cell: Mapping[str, float]) -> str:
    bound = f" ({cell['share_of_bound']:.0%})" if "share_of_bound" in cell else ""
    doubt = f", rounds differ by {cell['spread']}" if cell["spread"] > SPREAD else ""
    return f"{cell['median']:.4g}{bound}{doubt}"


def machine_state() -> dict[str, float]:
    return {"load": round(os.getloadavg()[0], 2), "steal": round(yardstick.stolen(), 3)}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--gguf", type=Path, metavar="FILE")
    parser.add_argument("--vllm", type=Path, metavar="VENV")
    parser.add_argument("--openvino", type=Path, metavar="VENV")
    parser.add_argument("--llama", type=Path, metavar="FOLDER")
    parser.add_argument("--rounds", type=int, default=5)
    flags = parser.parse_args()
    if (flags.openvino or flags.llama) and not flags.gguf:
        parser.error("--openvino and --llama compare a GGUF file: give it as --gguf FILE")
    before = machine_state()
    sizes = {model: weights_bytes(model) for model in (flags.folder, flags.gguf) if model}
    read_seconds = {model: yardstick.reading(size) for model, size in sizes.items()}
    figures: dict[str, dict[str, dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as logs, ExitStack() as stack:
        servers, libraries, runs = start(stack, flags, Path(logs))
        sides = servers + libraries
        works: dict[str, tuple[Work, list[Side]]] = {
            f"{count} at a time, tok/s": (Work(count), sides) for count in AT_A_TIME
        }
        for count, tokens in PROMPTS:
            name = f"first token of {count} x {tokens:,}, s" if count > 1 else f"first token of {tokens:,}, s"
            works[name] = (Work(count, tokens, 2, "first token, s"), sides)
        works["8 beside prompts, longest gap, s"] = (
            Work(8, figure="longest gap, s", tokens_beside=BESIDE),
            servers,
        )
        works["8 beside prompts, tok/s"] = (Work(8, tokens_beside=BESIDE), servers)
        for label, (work, sides) in works.items():
            figures[label] = {
                name: describe(name, work, cell, read_seconds[flags.gguf if "GGUF" in name else flags.folder])
                for name, cell in compare(sides, work, flags.rounds).items()
            }
        paths = {name: run.report() for name, run in runs.items()}
    result: dict[str, Any] = {
        "kind": yardstick.kind(levels.instructions()),
        "before": before,
        "after": machine_state(),
        "weights": {
            str(model): {"bytes": sizes[model], "read_seconds": round(read_seconds[model], 5)}
            for model in sizes
        },
        "paths": paths,
        "figures": figures,
    }
    print(table(figures))
    print(f"saved {save('cpu', result)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
