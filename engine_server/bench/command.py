"""The command line of `fairlead bench`."""

import argparse
import asyncio
import json
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from engine_server.bench.apis import APIS
from engine_server.bench.arrivals import Arrivals, Clients, Poisson
from engine_server.bench.client import HIDDEN
from engine_server.bench.load import Load
from engine_server.bench.provenance import provenance
from engine_server.bench.rows import Measurement
from engine_server.bench.run import BenchError, bench
from engine_server.contract.base.command_line import Parser

API_KEY = "FAIRLEAD_API_KEY"
# The exit status of a command that SIGINT ended.
INTERRUPTED = 130


def main(argv: list[str]) -> int:
    arguments = parser().parse_args(argv)
    load = Load(
        base_url=arguments.base_url.rstrip("/").removesuffix("/v1"),
        model=arguments.model,
        input_tokens=arguments.input_tokens,
        output_tokens=arguments.output_tokens,
        seed=arguments.seed,
        api=arguments.api,
        ignore_eos=arguments.ignore_eos,
        turns=arguments.turns,
        turn_tokens=arguments.turn_tokens,
    )
    arrivals: list[Arrivals] = [Clients(number) for number in arguments.concurrency]
    if arguments.request_rate:
        arrivals = [Poisson(rate) for rate in arguments.request_rate]
    api_key = (arguments.api_key or os.environ.get(API_KEY, "")).strip()
    rows: list[Measurement] = []
    interrupted = False
    try:
        asyncio.run(bench(load, arrivals, rows, arguments.requests, api_key))
    except BenchError as error:
        print(f"fairlead bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"fairlead bench: interrupted; rows so far: {len(rows)}", file=sys.stderr)
        interrupted = True
    if arguments.output is not None and rows:
        saved = result(load, rows, without_key(argv, api_key), interrupted)
        try:
            arguments.output.parent.mkdir(parents=True, exist_ok=True)
            arguments.output.write_text(json.dumps(saved, indent=1) + "\n")
        except OSError as error:
            print(f"fairlead bench: the result cannot be saved: {error}", file=sys.stderr)
            return 1
    if interrupted:
        return INTERRUPTED
    return 1 if any(row.errors for row in rows) else 0


def parser() -> argparse.ArgumentParser:
    parser = Parser(prog="fairlead bench", description="Measure an OpenAI-compatible server under load.")
    parser.add_argument("--base-url", required=True, metavar="URL", help="with or without /v1")
    parser.add_argument("--model", required=True, metavar="NAME", help="the name of the model that is asked")
    parser.add_argument(
        "--api-key",
        metavar="KEY",
        help=f"sent as a bearer token; better in the environment variable {API_KEY}, which other users can't see",
    )
    parser.add_argument("--api", choices=list(APIS), default="completions", help="the API that is asked")
    parser.add_argument(
        "--ignore-eos",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="ask for answers of exactly --output-tokens; --no-ignore-eos for servers that refuse the field",
    )
    parser.add_argument(
        "--input-tokens", type=positive, default=128, metavar="N", help="tokens of each prompt, about"
    )
    parser.add_argument(
        "--output-tokens", type=positive, default=128, metavar="N", help="tokens of each answer, at most"
    )
    parser.add_argument(
        "--turns",
        type=positive,
        default=1,
        help="requests of a conversation, each with the whole history of texts and answers, as an agent sends them",
    )
    parser.add_argument(
        "--turn-tokens",
        type=positive,
        default=128,
        help="tokens of the text that each turn after the first adds to the history",
    )
    arrivals = parser.add_mutually_exclusive_group()
    arrivals.add_argument(
        "--concurrency",
        type=positive,
        nargs="+",
        default=[1, 8, 32],
        metavar="N",
        help="numbers of clients, of which each asks again when its answer ends",
    )
    arrivals.add_argument(
        "--request-rate",
        type=positive_rate,
        nargs="+",
        metavar="RATE",
        help="conversations that begin per second, at random times (Poisson), whether or not earlier ones have ended",
    )
    parser.add_argument(
        "--requests",
        type=positive,
        help="for each row, conversations of --turns requests (default: 4 times the clients, or 30 s of the rate)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="seed of the prompts and of the times; another one misses every cache",
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="the file to save the result to, as JSON")
    return parser


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


def positive_rate(text: str) -> float:
    rate = float(text)
    if not 0 < rate < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no positive number")
    return rate


def without_key(argv: Sequence[str], api_key: str) -> list[str]:
    return [word.replace(api_key, HIDDEN) if api_key else word for word in argv]


def result(load: Load, rows: Sequence[Measurement], argv: Sequence[str], interrupted: bool) -> dict[str, Any]:
    """Return the result to save, with everything needed to repeat and compare it."""
    return {
        **provenance("fairlead", "bench", *argv),
        "load": asdict(load),
        "interrupted": interrupted,
        "rows": [asdict(row) for row in rows],
    }
