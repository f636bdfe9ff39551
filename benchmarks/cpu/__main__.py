"""The engine on a CPU beside vLLM's CPU build, over HTTP, and beside OpenVINO GenAI, in process.

    python -m benchmarks.cpu --vllm VENV --folder FOLDER --openvino VENV --gguf FILE [--rounds 3]

--vllm and --openvino are virtual environments with vLLM's CPU build and with openvino-genai; --folder is a model in
bfloat16 for both servers, --gguf a GGUF file for both libraries. Either comparison may be left out.

All sides run from the start and are measured in turn, round by round. Figures are output tokens a second, medians of
the rounds, with 128 tokens in and out; the ratio is of the medians. They are printed, and saved in benchmarks/results.
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.cpu.libraries import library
from benchmarks.cpu.servers import fairlead_server, vllm_server
from benchmarks.record import save
from engine_server.bench.arrivals import Clients
from engine_server.bench.load import Load
from engine_server.bench.rows import Measurement
from engine_server.bench.run import bench

TOKENS = 128
# Output tokens a second of one side with a number of clients, in round number `round`.
Measure = Callable[[int, int], float]
Figures = dict[str, dict[str, float]]


def over_http(base_url: str) -> Measure:
    def measure(clients: int, round: int) -> float:
        load = Load(base_url, "model", TOKENS, TOKENS, seed=round)
        rows: list[Measurement] = []
        asyncio.run(bench(load, [Clients(clients)], rows, count=max(4, 2 * clients)))
        (row,) = rows
        if row.errors:
            raise SystemExit(f"{base_url}: {row.first_errors}")
        return row.output_tokens_per_second

    return measure


def compare(sides: Mapping[str, Measure], clients: Sequence[int], rounds: int) -> Figures:
    """Measure the sides in turn; return the medians by number of clients and side."""
    rates: dict[int, dict[str, list[float]]] = {count: {name: [] for name in sides} for count in clients}
    for number in range(rounds):
        for count in clients:
            for name, measure in sides.items():
                print(f"round {number + 1}, {count} at a time: {name}", file=sys.stderr)
                rates[count][name].append(measure(count, number))
    return {
        str(count): {name: median(given) for name, given in of_all.items()} for count, of_all in rates.items()
    }


def table(figures: Figures) -> str:
    """Return rows of a Markdown table, with the ratio of the first side to the second."""
    names = list(next(iter(figures.values())))
    lines = [f"| at a time | {' | '.join(names)} | ratio |", "|---|" + "---|" * (len(names) + 1)]
    for count, rates in figures.items():
        ours, other = rates.values()
        lines.append(f"| {count} | {ours:.1f} | {other:.1f} | {ours / other:.2f} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vllm", type=Path, metavar="VENV")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--openvino", type=Path, metavar="VENV")
    parser.add_argument("--gguf", type=Path, metavar="FILE")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=3)
    flags = parser.parse_args()
    if (flags.vllm is None) != (flags.folder is None) or (flags.openvino is None) != (flags.gguf is None):
        parser.error("give --vllm with --folder, and --openvino with --gguf")
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as logs:
        if flags.vllm:
            with ExitStack() as stack:
                urls = {
                    "fairlead": stack.enter_context(fairlead_server(flags.folder, Path(logs))),
                    "vLLM": stack.enter_context(vllm_server(flags.vllm, flags.folder, Path(logs))),
                }
                sides = {name: over_http(url) for name, url in urls.items()}
                result["over HTTP, bfloat16"] = compare(sides, flags.clients, flags.rounds)
        if flags.openvino:
            with ExitStack() as stack:
                ours = stack.enter_context(
                    library(sys.executable, "benchmarks.cpu.fairlead_side", flags.gguf)
                )
                theirs = stack.enter_context(
                    library(str(flags.openvino / "bin/python"), "benchmarks.cpu.openvino_side", flags.gguf)
                )
                sides = {"fairlead": ours, "OpenVINO": theirs}
                result["in process, GGUF"] = compare(sides, flags.clients, flags.rounds)
    for title, figures in result.items():
        print(f"{title}\n\n{table(figures)}\n")
    print(f"saved {save('cpu', result)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
